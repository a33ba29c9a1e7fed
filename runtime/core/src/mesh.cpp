#include "tessera/core/mesh.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr Axis kAllAxes[kAxes] = {Axis::kReplicate, Axis::kShard};

}  // namespace

std::string_view to_string(Axis axis) {
  switch (axis) {
    case Axis::kReplicate:
      return "replicate";
    case Axis::kShard:
      return "shard";
  }
  return "unknown";
}

std::string to_string(AxisSet axes) {
  std::string text;
  for (Axis axis : kAllAxes) {
    if (!axes.contains(axis)) continue;
    if (!text.empty()) text += '+';
    text += to_string(axis);
  }
  return text.empty() ? "none" : text;
}

AxisSet parse_axes(std::string_view text) {
  if (text == "none") return {};
  AxisSet axes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    bool known = false;
    for (Axis axis : kAllAxes) {
      if (name != to_string(axis)) continue;
      require(!axes.contains(axis), ErrorCode::kConfig, "axis '", name, "' is named twice in '",
              text, "'");
      axes = axes | AxisSet{axis};
      known = true;
    }
    require(known, ErrorCode::kConfig, "unknown axis '", name, "' in '", text,
            "'; choose none, or replicate and shard joined by '+'");
    begin = end + 1;
  }
  return axes;
}

int Mesh::size(AxisSet axes) const {
  int product = 1;
  for (Axis axis : kAllAxes) {
    if (axes.contains(axis)) product *= size(axis);
  }
  return product;
}

std::vector<int> Mesh::group(AxisSet axes, int rank) const {
  require(rank >= 0 && rank < world_size(), ErrorCode::kInvalidArgument, "rank ", rank,
          " is outside of a mesh of ", world_size());
  std::vector<int> ranks;
  for (int other = 0; other < world_size(); ++other) {
    bool same = true;
    for (Axis axis : kAllAxes) {
      same = same && (axes.contains(axis) || index(axis, other) == index(axis, rank));
    }
    if (same) ranks.push_back(other);
  }
  return ranks;
}

}  // namespace tessera
