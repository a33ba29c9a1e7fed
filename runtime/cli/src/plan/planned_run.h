#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/trainer/fit.h"
#include "tessera/trainer/training_plan.h"

namespace tessera::cli {

/// A run of a GPT that is planned without its data.
struct PlannedRun {
  /// Changes the options of a config before the run is planned.
  using Adapt = std::function<void(TrainerOptions& options, const RunInputs& inputs)>;

  /// Plans the settings of `config`, and writes the model's back into it; see choose_gpt().
  PlannedRun(Config& config, const Adapt& adapt);
  PlannedRun(const PlannedRun&) = delete;
  PlannedRun& operator=(const PlannedRun&) = delete;

  const GptChoice choice;
  const Model model;
  const TokenShapes shapes;
  const TrainingPlan plan;
};

/// Settings of `train` and `plan` by which they choose others.
std::vector<Setting> fit_settings();

/// A request by the settings: the budget of --fit; without one --memory-limit; without either what
/// this machine has if `runs_here`, as all processes of the run agree, else the memory of the
/// profile's device.
FitRequest fit_request(const Config& config, const TrainerOptions& options, bool runs_here);

/// Writes the best combination into `config` and `options`. What process 0
/// has found holds for all processes of options.world, each of which must call it.
FitChoice apply_fit(Config& config, TrainerOptions& options, const RunInputs& inputs,
                    const FitRequest& request);

/// A table of the choice, the next ones and the nearest that do not fit.
void print_fit(std::ostream& out, const FitChoice& choice, const FitRequest& request);
/// All candidates.
nlohmann::ordered_json to_json(const FitChoice& choice, const FitRequest& request);

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
