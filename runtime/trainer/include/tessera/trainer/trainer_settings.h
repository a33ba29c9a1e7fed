#pragma once

#include <vector>

#include "tessera/trainer/bound_setting.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// Every setting that makes up TrainerOptions: its name, meaning and limits, and the member that
/// has its default. This table is the one place to add a setting: flags, keys of config files, the
/// log and what processes compare are made from it.
const std::vector<BoundSetting<TrainerOptions>>& trainer_rows();
/// Their settings, without the members. A program adds settings of its model and its data.
std::vector<Setting> trainer_settings();

/// The files that a program may write of a run: log, csv and tensorboard. They are no options of
/// the trainer; a program that has them opens the logs itself.
std::vector<Setting> output_settings();
/// Whether a run's program also writes the trained model as one Hugging Face folder beside the
/// checkpoints; no option of the trainer either.
Setting state_dict_setting();

/// The options that a table with trainer_settings() in it holds.
/// Throws Error{kConfig} if values do not fit together.
TrainerOptions trainer_options(const Settings& settings);

/// Writes back what the options were resolved to, so that a log tells every effective setting.
void set_effective(Settings& settings, const TrainerOptions& resolved);

}  // namespace tessera
