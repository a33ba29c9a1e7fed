#include "tessera/trainer/trainer.h"

#include <exception>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/trainer/agreement.h"
#include "tessera/trainer/rank_device.h"
#include "training_run.h"

namespace tessera {

namespace {

/// What `body` gives. If it throws, the other processes must not wait for this one.
template <typename Body>
auto telling_others(const std::shared_ptr<World>& world, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    if (world != nullptr) {
      world->groups().front()->abort(
          concat("rank ", world->first_rank(), " failed: ", error.what()));
    }
    throw;
  }
}

/// All processes of a run must have come here for the same run.
void compare_processes(const Model& model, const BatchSource& source,
                       const TrainerOptions& options) {
  if (options.world == nullptr || options.world->processes() == 1) return;
  const auto own = telling_others(options.world, [&] {
    TrainerOptions here = resolved(options);
    here.device = resolved_device(here.device);
    std::vector<NamedText> all = identity_of_options(here);
    all.insert(all.begin(), identity_of_program());
    all.push_back(identity_of_model(model));
    for (NamedText& value : identity_of_data(source, here)) all.push_back(std::move(value));
    return all;
  });
  require_agreement(*options.world, own);
}

/// A plan is for any machine; a run is for this one.
TrainingPlan plan_here(const Model& model, const BatchSource& source,
                       const TrainerOptions& options) {
  compare_processes(model, source, options);
  return telling_others(options.world, [&] {
    const TrainerOptions here = on_this_machine(options);
    TrainingPlan plan = make_training_plan(model, source, here);
    if (std::string note = sharing_note(here); !note.empty()) {
      plan.notes.insert(plan.notes.begin(), std::move(note));
    }
    require_memory(plan, model, source, available_bytes(plan.options));
    return plan;
  });
}

}  // namespace

Trainer::Trainer(const Model& model, const BatchSource& source, const TrainerOptions& options)
    : model_(model), source_(source), plan_(plan_here(model, source, options)) {}

TrainingSummary Trainer::train(const OnStep& on_step, const OnNote& on_note) const {
  TrainingRun run(plan_, model_, source_, on_step, on_note);
  return run.run();
}

}  // namespace tessera
