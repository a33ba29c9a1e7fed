#pragma once

#include <vector>

#include "tessera/trainer/config.h"

namespace tessera::cli {

/// What the process ends with.
inline constexpr int kExitGood = 0;
inline constexpr int kExitRunTime = 1;   ///< the run failed
inline constexpr int kExitUsage = 2;     ///< the settings or the data cannot work
inline constexpr int kExitSignal = 128;  ///< plus the signal that ended training early

/// Settings that only `train` has, and only `plan`.
std::vector<Setting> train_only_settings();
std::vector<Setting> plan_only_settings();

/// Trains; returns the exit code.
int run_train(Config config);
/// Prints a schedule and its cost; returns the exit code.
int run_plan(Config config);

}  // namespace tessera::cli
