#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// The manifest of this run's checkpoints, without their files and position.
Manifest describe_run(const TrainingPlan& plan);

struct ResumeChoice {
  std::shared_ptr<const ResumePoint> point{};  ///< null: the run begins at step 0
  std::vector<std::string> notes{};
};

/// The checkpoint that the plan's options name, of a folder the newest that is whole, compared with
/// the run: its manifest, but not its files, have been read. `unreadable`: those of which loading
/// has found that they are not. The notes are on damaged ones that were passed over, on what is
/// taken from it and on what differs. Throws Error{kConfig} that names what must not differ, both
/// values and the option that allows it, or what is damaged in each checkpoint if none is whole,
/// and Error{kNotFound}.
ResumeChoice find_resume_point(const TrainingPlan& plan,
                               const std::vector<DamagedCheckpoint>& unreadable = {});

/// Throws in all processes unless they have found the same. Every process must call it.
void agree_on_resume_point(const TrainerOptions& options, const ResumePoint* point);

/// The newest checkpoint of an earlier step beside it that is whole as far as damage_of() tells; ""
/// if there is none.
std::string checkpoint_before(const ResumePoint& point);

}  // namespace tessera
