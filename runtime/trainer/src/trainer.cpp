#include "tessera/trainer/trainer.h"

#include <exception>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/trainer/rank_device.h"
#include "training_run.h"

namespace tessera {

namespace {

/// A plan is for any machine; a run is for this one.
TrainingPlan plan_here(const Model& model, const BatchSource& source,
                       const TrainerOptions& options) {
  try {
    const TrainerOptions here = on_this_machine(options);
    TrainingPlan plan = make_training_plan(model, source, here);
    if (std::string note = sharing_note(here); !note.empty()) {
      plan.notes.insert(plan.notes.begin(), std::move(note));
    }
    require_memory(plan, model, source, available_bytes(plan.options));
    return plan;
  } catch (const std::exception& error) {
    // The other processes must not wait for this one.
    if (options.world != nullptr) {
      options.world->groups().front()->abort(
          concat("rank ", options.world->first_rank(), " failed: ", error.what()));
    }
    throw;
  }
}

}  // namespace

Trainer::Trainer(const Model& model, const BatchSource& source, const TrainerOptions& options)
    : model_(model), source_(source), plan_(plan_here(model, source, options)) {}

TrainingSummary Trainer::train(const OnStep& on_step, const OnNote& on_note) const {
  TrainingRun run(plan_, model_, source_, on_step, on_note);
  return run.run();
}

}  // namespace tessera
