#include "tessera/lab/measurement_noise.h"

#include <cmath>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// From these on predictions are off by more than they are on a quiet machine (runtime/lab/README.md
// has the errors).
constexpr double kMostOthers = 0.10, kMostStolen = 0.05, kMostWaiting = 0.25, kMostThrottled = 0.05;
constexpr double kMostSpread = 0.20, kMostDisturbed = 0.10;

std::string percent(double share) { return concat(std::lround(100.0 * share), " %"); }

}  // namespace

std::vector<std::string> disturbances(const MachineLoad& load) {
  std::vector<std::string> lines;
  if (load.others > kMostOthers) {
    lines.push_back(concat("other programs had ", percent(load.others), " of the cores"));
  }
  if (load.waiting > kMostWaiting) {
    lines.push_back(concat("before it began, threads of other programs wanted ",
                           percent(load.waiting), " of the cores at once"));
  }
  if (load.stolen > kMostStolen) {
    lines.push_back(concat("the hypervisor gave ", percent(load.stolen),
                           " of the CPUs' time to other virtual machines (steal)"));
  }
  if (load.throttled > kMostThrottled) {
    lines.push_back(concat("the control group's quota held this program back in ",
                           percent(load.throttled), " of its periods"));
  }
  return lines;
}

std::vector<std::string> disturbances(const MeasurementNoise& noise) {
  std::vector<std::string> lines = disturbances(MachineLoad{.others = noise.others,
                                                            .stolen = noise.stolen,
                                                            .waiting = noise.waiting,
                                                            .throttled = noise.throttled});
  const double disturbed =
      noise.points > 0 ? static_cast<double>(noise.disturbed) / static_cast<double>(noise.points)
                       : 0.0;
  if (disturbed > kMostDisturbed) {
    lines.push_back(concat("of ", noise.points, " points, ", noise.disturbed,
                           " were disturbed in each of their repeats"));
  }
  if (noise.spread > kMostSpread) {
    lines.push_back(
        concat("repeats of a point were ", percent(noise.spread), " apart (quartiles)"));
  }
  return lines;
}

}  // namespace tessera
