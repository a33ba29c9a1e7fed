#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/machine_load.h"

namespace tessera {

/// How undisturbed the measurements of a profile were. A profile keeps it under "noise".
struct MeasurementNoise {
  double others = 0.0;     ///< as in MachineLoad, while it was measured
  double stolen = 0.0;     ///< as in MachineLoad
  double waiting = 0.0;    ///< as in MachineLoad, before it was measured
  double throttled = 0.0;  ///< as in MachineLoad
  double spread = 0.0;  ///< of a point's repeats, quartiles' distance over median: over points the
                        ///< median
  std::int64_t points = 0;     ///< measured
  std::int64_t disturbed = 0;  ///< of those: in each of its repeats a thread lost its core
  std::int64_t left_out = 0;   ///< points that the time did not suffice for
};

/// A sentence for each reading of a machine that is too busy to measure; none: it is quiet enough.
std::vector<std::string> disturbances(const MachineLoad& load);
/// Likewise of measurements that are over.
std::vector<std::string> disturbances(const MeasurementNoise& noise);

}  // namespace tessera
