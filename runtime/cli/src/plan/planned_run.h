#pragma once

#include <functional>

#include "settings/gpt_choice.h"
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

}  // namespace tessera::cli
