#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/trainer/config.h"
#include "tessera/trainer/csv_log.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/tensorboard.h"
#include "tessera/trainer/trainer.h"

namespace tessera::cli {

/// The files that a run writes while it trains: as many of output_settings() as were asked for.
class RunOutputs {
 public:
  /// Creates them; throws Error{kIo} before anything is trained.
  RunOutputs(const Config& config, const Model& model);

  void begin(const Config& config);
  void note(const std::string& text);
  /// `peak_flops`: what MFU is told against.
  void step(const StepRecord& record, double peak_flops);
  void end(const TrainingPlan& plan, const TrainingSummary& summary,
           const RunMeasurements& measurements);

 private:
  const Model& model_;
  std::optional<RunLog> log_;
  std::optional<CsvLog> csv_;
  std::optional<TensorBoardLog> board_;
};

}  // namespace tessera::cli
