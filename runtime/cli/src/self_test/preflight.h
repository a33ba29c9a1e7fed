#pragma once

#include "tessera/compat/config.h"
#include "tessera/compat/launcher.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {

/// Tests that the processes a launcher has started can train together, before hours are spent on
/// it: that all are reached, run the same program with the same settings, how fast machines answer
/// each other, that collectives give the right bits, and that sharding over all of them changes
/// nothing. Rank 0 tells; whatever fails names the process. Returns the exit code, the same in all
/// processes. Throws what failed in processes without rank 0.
int run_preflight(Config& config, TrainerOptions options, const Launcher& launcher);

}  // namespace tessera::cli
