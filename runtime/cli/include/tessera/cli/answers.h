#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tessera/cli/given_settings.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/sharding/timeline.h"

// The commands that run nothing, as functions: settings in, values out. Each throws what the
// command would print: Error{kConfig} for settings that are unknown or cannot work.
namespace tessera::cli {

/// `tessera plan`.
struct PlanAnswer {
  nlohmann::ordered_json json{};  ///< as `tessera plan --format json` prints it
  StepPlan step{};
  std::vector<std::string> notes{};
};
PlanAnswer answer_plan(const GivenSettings& given);

/// `tessera simulate`.
struct SimulationAnswer {
  nlohmann::ordered_json json{};  ///< one of the runs of `tessera simulate --format json`
  StepPlan step{};
  /// Says when actions ran in the last step, by pipeline rank, in virtual seconds.
  std::vector<std::vector<ActionSpan>> spans{};
};
SimulationAnswer answer_simulation(const GivenSettings& given);

/// Settings and the values, as texts, that they take in turn.
using SweptSettings = std::vector<std::pair<std::string, std::vector<std::string>>>;

/// `tessera simulate --sweep`: {"runs": [...], "left_out": [{"values": ..., "why": ...}]}.
nlohmann::ordered_json answer_sweep(const GivenSettings& given, const SweptSettings& sweep);

/// `tessera estimate-memory`, with lists of its own for ranks, strategy, precision and dtypes.
nlohmann::ordered_json answer_memory(const GivenSettings& given, const SweptSettings& lists);

/// `tessera explain`: the keys of the config file, and each setting with its source.
nlohmann::ordered_json answer_explanation(const GivenSettings& given);

/// {"calls": ..., "sent_bytes": ..., "copied_bytes": ..., "memory": ..., "host_memory": ...,
/// "disk_bytes": ..., "gradient_sum_bytes": ...} of one rank's step.
nlohmann::ordered_json account_json(const Schedule& schedule);

}  // namespace tessera::cli
