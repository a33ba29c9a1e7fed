#pragma once

#include "tessera/trainer/training_plan.h"

namespace tessera {

/// A plan for this machine and the processes of the run, which compare what they have been asked
/// for; see agreement.h. Throws Error{kConfig}, and Error{kOutOfMemory} if the run would not fit.
TrainingPlan agreed_plan(const RunInputs& inputs, const TrainerOptions& options);

/// True in rank 0's process.
bool speaks(const TrainerOptions& options);

}  // namespace tessera
