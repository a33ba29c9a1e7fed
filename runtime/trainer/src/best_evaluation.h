#pragma once

#include <optional>

#include "tessera/trainer/records.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// Whether a run compares the losses of its evaluations: to keep the best checkpoint, or to stop.
bool compares_evaluations(const TrainerOptions& options);

/// Compares an evaluation with the session's best, which it may become, and adds both to its
/// record. Returns whether it is the best so far. A loss that is nan is not.
bool compare_with_best(Session& session, EvaluationRecord& record);

/// Whether TrainerOptions::patience says to stop.
bool has_lost_patience(const TrainerOptions& options, const std::optional<BestEvaluation>& best);

/// Throws Error{kConfig} that names what is missing for options that compare evaluations.
void check_best_evaluation(const TrainerOptions& options, bool has_evaluation);

}  // namespace tessera
