#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/sharding/account_json.h"
#include "tessera/trainer/multiple_choice_record.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer.h"

namespace tessera {

/// Measurements that a log has beside the summary itself.
struct RunMeasurements {
  double matmul_flops_per_second = 0.0;  ///< see measure_matmul_flops; 0: not measured
  std::optional<double> mfu{};           ///< see model_flops_utilisation
};

/// Which run a log is of, beside its settings.
struct RunIdentity {
  std::string version{};  ///< of the program
  std::int64_t parameters = 0;
};

/// A run as JSON, one object per line: "run" with every effective setting, "note" for what a user
/// should know of how it runs, "step" per step, "evaluation" or "multiple_choice" per evaluation,
/// "checkpoint" per checkpoint, and "summary". Numbers round-trip; what JSON has no number for
/// (nan, infinity) is null. Every line is written whole and flushed before the call returns. Throws
/// Error{kIo} if that fails.
class RunLog {
 public:
  /// Makes the file and its folder; throws at once if that is not possible. Earlier content is
  /// dealt with as `existing` says.
  explicit RunLog(std::string path, Existing existing = Existing::kReplace);

  /// `settings`: an object. Before them are "kind", "version", "numerics" (kNumericsVersion),
  /// "date" (now, UTC, ISO 8601), "host" and "parameters"; read_config leaves those out again.
  void run(const RunIdentity& identity, const nlohmann::ordered_json& settings);
  void note(const std::string& text);
  /// `mfu`: see model_flops_utilisation. `samples_by_source`: of each source of a mixture of data
  /// (see DataMixture), how many samples the run has read; empty: left out.
  void step(const StepRecord& record, std::optional<double> mfu,
            const std::vector<std::int64_t>& samples_by_source = {});
  void evaluation(const EvaluationRecord& record);
  /// A line with a "kind".
  void line(const nlohmann::ordered_json& line);
  void checkpoint(const SaveRecord& record);
  void summary(const TrainingPlan& plan, const TrainingSummary& summary,
               const RunMeasurements& measurements);

 private:
  OutputFile file_;
};

/// A number, or null where there is none.
template <typename Number>
nlohmann::ordered_json or_null(const std::optional<Number>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

/// The line of a step, of an evaluation and of answered questions.
nlohmann::ordered_json to_json(const StepRecord& record, std::optional<double> mfu);
nlohmann::ordered_json to_json(const EvaluationRecord& record);
nlohmann::ordered_json to_json(const MultipleChoiceRecord& record);

/// Whether the first line of a log has a value under `key` that is no setting.
bool is_of_run_line(std::string_view key);

}  // namespace tessera
