#include "tessera/trainer/trainer.h"

#include <algorithm>

#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "training_run.h"

namespace tessera {

Trainer::Trainer(const Model& model, const BatchSource& source, const TrainerOptions& options)
    : model_(model), source_(source), plan_(make_training_plan(model, source, options)) {
  require_memory(plan_, model, source, available_host_bytes());
}

TrainingSummary Trainer::train(const OnStep& on_step) const {
  TrainingRun run(plan_, model_, source_, on_step);
  return run.run();
}

}  // namespace tessera
