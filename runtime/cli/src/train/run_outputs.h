#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/compat/config.h"
#include "tessera/trainer/csv_log.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/tensorboard.h"
#include "tessera/trainer/trainer.h"

namespace tessera::cli {

/// The files that a run writes while it trains: as many of output_settings() as were asked for.
/// They are made with the first step, so that a run that cannot start leaves older ones as they
/// are.
class RunOutputs {
 public:
  /// Throws Error{kIo} if one cannot be written, and Error{kConfig} if one is read by the run
  /// (`data_files`, config files), two are one file, or one holds an earlier run and neither
  /// --append nor --overwrite says what becomes of that. Makes and changes nothing.
  static void check(const Config& config, const std::vector<std::string>& data_files);

  /// How many samples of each of the data a run has read after a step.
  using SamplesBySource = std::function<std::vector<std::int64_t>(std::int64_t step)>;

  /// Config and model outlive this. `samples`: unset where there is one source.
  RunOutputs(const Config& config, const Model& model, SamplesBySource samples = {})
      : config_(config), model_(model), samples_(std::move(samples)) {}

  void note(const std::string& text);
  /// `peak_flops`: what MFU is told against; 0: there is none. A step that achieves more has no
  /// MFU.
  void step(const StepRecord& record, double peak_flops);
  void evaluation(const EvaluationRecord& record);
  void checkpoint(const SaveRecord& record);
  void end(const TrainingPlan& plan, const TrainingSummary& summary,
           const RunMeasurements& measurements);

 private:
  void open();

  const Config& config_;
  const Model& model_;
  SamplesBySource samples_;
  bool is_open_ = false;
  std::optional<RunLog> log_;
  std::optional<CsvLog> csv_;
  std::optional<TensorBoardLog> board_;
};

}  // namespace tessera::cli
