#pragma once

#include <string>
#include <vector>

#include "tessera/core/mesh.h"

namespace tessera::test {

/// A mesh of `replicas` replicas of `ranks` ranks each.
inline Mesh grid(int replicas, int ranks) {
  return {{Axis::kReplicate, replicas}, {Axis::kShard, ranks}};
}

/// Every set of axes, the empty one first.
inline std::vector<AxisSet> every_axis_set() {
  std::vector<AxisSet> sets{AxisSet{}};
  for (const AxisRow& row : kAxisTable) {
    const std::vector<AxisSet> without = sets;
    for (const AxisSet axes : without) sets.push_back(axes | AxisSet{row.axis});
  }
  return sets;
}

/// "2x3".
inline std::string shape_of(const Mesh& mesh) {
  std::string text;
  for (const AxisRow& row : kAxisTable) {
    if (!is_always_written(row) && mesh.size(row.axis) == 1) continue;
    text += (text.empty() ? "" : "x") + std::to_string(mesh.size(row.axis));
  }
  return text;
}

}  // namespace tessera::test
