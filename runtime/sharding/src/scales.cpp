#include "tessera/sharding/scales.h"

#include <algorithm>

#include "passes/pass_tools.h"

namespace tessera {
namespace {

/// The axes along which a flat parameter's codes are gathered; none: they are not.
AxisSet gathered_axes(const Schedule& schedule, const FlatId& id) {
  const ScheduleUnit& unit = schedule.units[static_cast<std::size_t>(id.unit)];
  const bool trains = schedule.gather_codes && schedule.purpose == Purpose::kTrain;
  if (!trains || !schedule.flat(id).has_codes() || unit.mirrors >= 0) return {};
  const auto kept = std::ranges::find_if(schedule.buffers, [&](const ScheduleBuffer& buffer) {
    return is_flat_parameter(buffer) && buffer.unit == id.unit && buffer.flat == id.flat;
  });
  const bool is_here = kept != schedule.buffers.end() && kept->tier == Tier::kDevice;
  return is_here ? kept->sharded : AxisSet();
}

}  // namespace

ScaleTable::ScaleTable(const Schedule& schedule) {
  if (!schedule.gather_codes) return;
  for (const bool trainable : {true, false}) {
    int left = 0;  // of the group at hand
    for (int u = 0; u < static_cast<int>(schedule.units.size()); ++u) {
      const auto flats = static_cast<int>(schedule.units[static_cast<std::size_t>(u)].flats.size());
      for (int f = 0; f < flats; ++f) {
        const FlatId id{u, f};
        const ScheduleFlat& flat = schedule.flat(id);
        if (flat.trainable != trainable || !flat.has_codes()) continue;
        const AxisSet axes = gathered_axes(schedule, id);
        if (axes.empty()) continue;
        const auto number = static_cast<int>(entries_.size());
        if (left == 0) {
          groups_.push_back({.begin = number, .end = number, .axes = axes});
          left = schedule.scale_units;
        }
        Group& group = groups_.back();
        entries_.push_back({.id = id,
                            .group = static_cast<int>(groups_.size()) - 1,
                            .first_word = group.words,
                            .matrices = flat.matrices});
        group.end = number + 1;
        group.words += flat.matrices;
        group.numel = group.words * (1 + schedule.mesh.size(axes));
        --left;
      }
    }
  }
}

int ScaleTable::find(const FlatId& id) const {
  const auto found = std::ranges::find(entries_, id, &Entry::id);
  return found == entries_.end() ? -1 : static_cast<int>(found - entries_.begin());
}

int ScaleTable::group_in(const Schedule& schedule, int buffer) const {
  int group = -1;
  for (int b = 0; b <= buffer; ++b) {
    if (schedule.buffers[static_cast<std::size_t>(b)].kind == BufferKind::kScales) ++group;
  }
  const bool is_one =
      schedule.buffers[static_cast<std::size_t>(buffer)].kind == BufferKind::kScales &&
      group < static_cast<int>(groups_.size());
  return is_one ? group : -1;
}

}  // namespace tessera
