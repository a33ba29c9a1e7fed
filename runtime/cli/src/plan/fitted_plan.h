#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "plan/fit_setting.h"
#include "plan/planned_run.h"

namespace tessera::cli {

/// The run that settings describe, with the combination that --fit has chosen, if it is given.
struct FittedPlan {
  std::unique_ptr<const PlannedRun> run{};
  std::optional<FitRequest> request{};
  std::optional<FitChoice> choice{};
};

/// Plans for any machine: with --fit, and without --device, for the device of its profile. Writes
/// what was chosen, and what the settings have come to be, into `config`.
FittedPlan plan_fitted(Config& config);

/// A plan as `tessera plan --format json` prints it.
nlohmann::ordered_json to_json(const Config& config, const FittedPlan& plan);

}  // namespace tessera::cli
