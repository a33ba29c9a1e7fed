#pragma once

#include <vector>

#include "tessera/trainer/config.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// The settings that make up TrainerOptions. A program adds those of its model and its data.
std::vector<Setting> trainer_settings();

/// The files that a program may write of a run: log, csv and tensorboard. They are no options of
/// the trainer; a program that has them opens the logs itself.
std::vector<Setting> output_settings();

/// The options that a table with trainer_settings() in it holds.
/// Throws Error{kConfig} if values do not fit together.
TrainerOptions trainer_options(const Config& config);

/// Writes back what the options were resolved to, so that a log tells every effective setting.
void set_effective(Config& config, const TrainerOptions& resolved);

}  // namespace tessera
