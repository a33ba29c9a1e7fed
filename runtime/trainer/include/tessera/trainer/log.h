#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/core/memory.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer.h"

namespace tessera {

/// What belongs in a log beside the summary itself.
struct RunMeasurements {
  double matmul_flops_per_second = 0.0;  ///< see measure_matmul_flops; 0: not measured
  double mfu = 0.0;
};

/// A run as JSON, one object per line: "run" with every effective setting, "note" for what a user
/// should know of how it runs, "step" per step, and "summary". Numbers round-trip; what JSON has no
/// number for (nan, infinity) is null. Every line is written whole and flushed before the call
/// returns. Throws Error{kIo} if that fails.
class RunLog {
 public:
  /// Creates or empties the file, and makes its folder; throws at once if that is not possible.
  explicit RunLog(std::string path);

  /// `settings`: an object. It is written with "kind" in front.
  void run(const nlohmann::ordered_json& settings);
  void note(const std::string& text);
  void step(const StepRecord& record);
  void summary(const TrainingPlan& plan, const TrainingSummary& summary,
               const RunMeasurements& measurements);

 private:
  void write(const nlohmann::ordered_json& line);

  OutputFile file_;
};

/// {"total": …, "parameters": …, …}: bytes by category.
nlohmann::ordered_json to_json(const MemoryPeak& peak);
/// {"all_gather": …, …}: bytes sent by kind of collective.
nlohmann::ordered_json sent_bytes_to_json(const Traffic& traffic);
/// {"all_gather": …, …}: calls by kind of collective.
nlohmann::ordered_json calls_to_json(const Traffic& traffic);

}  // namespace tessera
