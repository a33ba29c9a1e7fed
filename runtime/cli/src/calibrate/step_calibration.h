#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tessera/compat/config.h"
#include "tessera/lab/hardware_profile.h"
#include "tessera/lab/step_times.h"

namespace tessera::cli {

/// Told what is timed next; false: stop.
using StepProgress = std::function<bool(const std::string& what)>;

/// Times the kernels inside of steps of the run that `config` describes, with recomputation and
/// without, on the device of the profile: of a CPU one rank with all `cores`, and as many as there
/// are cores with one thread each, of GPUs the first one. The ranks are alone, without what
/// strategies, accumulation, stages and offload add: simulation adds these. Each of them is timed
/// for `seconds`. Throws Error{kConfig} on what cannot be planned, Error{kAborted} if `progress`
/// says so.
std::vector<StepTimes> calibrate_steps(const Config& config, const HardwareProfile& profile,
                                       int cores, double seconds, const StepProgress& progress);

/// Prints how long steps took, and where they lose time: the kernels that take most longer inside
/// of a step than alone, in ms of a step.
void print_steps(std::ostream& out, const StepTimes& steps);

/// Replaces the steps of a profile that are of the same run as those of `fresh`.
void replace_steps(HardwareProfile& profile, std::vector<StepTimes> fresh);

}  // namespace tessera::cli
