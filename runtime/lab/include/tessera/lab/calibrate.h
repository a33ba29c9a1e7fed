#pragma once

#include <functional>
#include <string>

#include "tessera/lab/hardware_profile.h"

namespace tessera {

struct CalibrationOptions {
  std::string name;           ///< of the profile
  std::string machine;        ///< in words, for the sources of its numbers
  int cores = 1;              ///< that ranks share
  double memory_bytes = 0.0;  ///< of the machine
  double seconds = 0.03;      ///< about how long each point is measured
  int coarseness = 1;         ///< 2: every second size of each grid, and so on
  /// Called before each measurement; false: stop.
  std::function<bool(const std::string& what, int done, int all)> progress{};
};

/// Times kernels, collectives and the handing over of work between lanes on this machine's CPU: no
/// run that a profile is to predict. Kernels run on as many ranks at once as keep all cores busy,
/// each with 1 thread, with all cores, and with about as many threads as ranks; collectives among
/// 2, 4, ... ranks up to twice the cores, at most 16. What a kernel reads has mostly left the
/// caches of a core.
///
/// Throws Error{kAborted} when `progress` says so, and what the kernels throw.
HardwareProfile calibrate_cpu(const CalibrationOptions& options);

}  // namespace tessera
