#include "tessera/trainer/trainer.h"

#include <span>
#include <string>
#include <vector>

#include "agreed_plan.h"
#include "tessera/trainer/session.h"

namespace tessera {

Trainer::Trainer(const Model& model, const BatchSource& source, const TrainerOptions& options,
                 const BatchSource* evaluation)
    : plan_(agreed_plan({model, source, evaluation}, options)) {}

TrainingSummary Trainer::train(const OnStep& on_step, const OnNote& on_note,
                               const OnEvaluation& on_evaluation, const OnSave& on_save,
                               const OnParameter& on_parameter) const {
  const auto tell = [&](std::span<const std::string> notes) {
    for (const std::string& note : notes) {
      if (speaks(plan_.options) && on_note) on_note(note);
    }
  };
  tell(plan_.notes);
  Session session(plan_);
  TrainingLoop loop(session, {.on_step = on_step,
                              .on_note = on_note,
                              .on_evaluation = on_evaluation,
                              .on_save = on_save,
                              .on_parameter = on_parameter});
  loop.tell_notes(plan_.notes.size());
  while (loop.next()) continue;
  return loop.finish();
}

}  // namespace tessera
