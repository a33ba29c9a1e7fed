#include "plan/planned_run.h"

#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

TrainingPlan planned(const Config& config, const RunInputs& inputs,
                     const PlannedRun::Adapt& adapt) {
  TrainerOptions options = trainer_options(config);
  adapt(options, inputs);
  return make_training_plan(inputs, options);
}

}  // namespace

PlannedRun::PlannedRun(Config& config, const Adapt& adapt)
    : choice(choose_gpt(config)),
      model(make_model(choice)),
      shapes(choice.sequence_length, choice.has_starts),
      plan(planned(config, {model, shapes}, adapt)) {}

}  // namespace tessera::cli
