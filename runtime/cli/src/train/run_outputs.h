#pragma once

#include <memory>
#include <optional>
#include <string>
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

  /// Both arguments outlive this.
  RunOutputs(const Config& config, const Model& model) : config_(config), model_(model) {}

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
  bool is_open_ = false;
  std::optional<RunLog> log_;
  std::optional<CsvLog> csv_;
  std::optional<TensorBoardLog> board_;
};

}  // namespace tessera::cli
