#include "tessera/trainer/trainer.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/trainer/rank_device.h"
#include "training_run.h"

namespace tessera {

namespace {

/// A plan is for any machine; a run is for this one.
TrainerOptions for_this_machine(TrainerOptions options) {
  options.device = resolved_device(options.device);
  check_device(options);
  return options;
}

}  // namespace

Trainer::Trainer(const Model& model, const BatchSource& source, const TrainerOptions& options)
    : model_(model),
      source_(source),
      plan_(make_training_plan(model, source, for_this_machine(options))) {
  require_memory(plan_, model, source, available_bytes(plan_.options));
}

TrainingSummary Trainer::train(const OnStep& on_step) const {
  TrainingRun run(plan_, model_, source_, on_step);
  return run.run();
}

}  // namespace tessera
