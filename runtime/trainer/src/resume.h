#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// What a checkpoint of this run says of it; its files and its position are left open.
Manifest describe_run(const TrainingPlan& plan, const Model& model, const BatchSource& source);

/// The checkpoint that the plan's options name, of a folder the newest that is whole, compared with
/// the run: its manifest, but not its files, have been read. Null if the run begins at step 0. Adds
/// notes on damaged ones that were passed over, on what is taken from it and on what differs.
/// Throws Error{kConfig} that names what must not differ, both values and the option that allows
/// it, or what is damaged in each checkpoint if none is whole, and Error{kNotFound}.
std::shared_ptr<const ResumePoint> find_resume_point(TrainingPlan& plan, const Model& model,
                                                     const BatchSource& source);

/// The newest checkpoint of an earlier step beside it that is whole as far as damage_of() tells; ""
/// if there is none.
std::string checkpoint_before(const ResumePoint& point);

}  // namespace tessera
