#include "tessera/core/mesh.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/core/rank_grid.h"

namespace tessera {
namespace {

constexpr bool is_in_order_of_axes() {
  for (std::size_t row = 0; row < kAxisTable.size(); ++row) {
    if (kAxisTable[row].axis != static_cast<Axis>(row)) return false;
  }
  return true;
}
static_assert(is_in_order_of_axes());

}  // namespace

std::string to_string(AxisSet axes) {
  std::string text;
  for (const AxisRow& row : kAxisTable) {
    if (!axes.contains(row.axis)) continue;
    if (!text.empty()) text += '+';
    text += row.name;
  }
  return text.empty() ? "none" : text;
}

AxisSet parse_axes(std::string_view text) {
  if (text == "none") return {};
  AxisSet axes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    const auto* const row = std::ranges::find(kAxisTable, name, &AxisRow::name);
    require(row != kAxisTable.end(), ErrorCode::kConfig, "unknown axis '", name, "' in '", text,
            "'; choose ", axis_choices());
    require(!axes.contains(row->axis), ErrorCode::kConfig, "axis '", name, "' is named twice in '",
            text, "'");
    axes = axes | AxisSet{row->axis};
    begin = end + 1;
  }
  return axes;
}

std::string axis_choices() {
  std::vector<std::string_view> names;
  for (const AxisRow& row : kAxisTable) {
    if (row.may_shard_state) names.push_back(row.name);
  }
  std::string text = "none, or ";
  for (std::size_t n = 0; n < names.size(); ++n) {
    if (n > 0) text += n + 1 < names.size() ? ", " : " and ";
    text += names[n];
  }
  return text + " joined by '+'";
}

int Mesh::world_size() const { return rank_grid::ranks(sizes_); }

AxisSet Mesh::axes() const {
  AxisSet axes;
  for (const AxisRow& row : kAxisTable) {
    if (size(row.axis) > 1) axes = axes | AxisSet{row.axis};
  }
  return axes;
}

int Mesh::index(Axis axis, int rank) const {
  return rank_grid::index(sizes_, static_cast<std::size_t>(axis), rank);
}

std::vector<int> Mesh::group(AxisSet axes, int rank) const {
  require(rank >= 0 && rank < world_size(), ErrorCode::kInvalidArgument, "rank ", rank,
          " is outside of a mesh of ", world_size());
  std::vector<std::size_t> dimensions;
  for (const AxisRow& row : kAxisTable) {
    if (axes.contains(row.axis)) dimensions.push_back(static_cast<std::size_t>(row.axis));
  }
  return rank_grid::group(sizes_, dimensions, rank);
}

std::string to_string(const Mesh& mesh, std::string_view separator) {
  std::string text;
  for (const AxisRow& row : kAxisTable) {
    if (!is_always_written(row) && mesh.size(row.axis) == 1) continue;
    if (!text.empty()) text += separator;
    text += concat(row.name, ' ', mesh.size(row.axis));
  }
  return text;
}

}  // namespace tessera
