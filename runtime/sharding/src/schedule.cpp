#include "tessera/sharding/schedule.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::string_view kSnapshotSuffix = "@snapshot";

}  // namespace

std::string_view to_string(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
      return "compute";
    case Lane::kGather:
      return "gather";
    case Lane::kOptimizer:
      return "optimizer";
    case Lane::kReduce:
      return "reduce";
    case Lane::kCopyOut:
      return "copy-out";
    case Lane::kCopyIn:
      return "copy-in";
  }
  return "unknown";
}

std::string_view to_string(Role role) {
  switch (role) {
    case Role::kParameter:
      return "parameter";
    case Role::kFrozen:
      return "frozen";
    case Role::kMaster:
      return "master";
    case Role::kOptimizer:
      return "optimizer";
    case Role::kGradient:
      return "gradient";
    case Role::kScalars:
      return "scalars";
    case Role::kActivation:
      return "activation";
    case Role::kActivationGradient:
      return "activation-gradient";
  }
  return "unknown";
}

std::string_view to_string(Purpose purpose) {
  return purpose == Purpose::kTrain ? "train" : "evaluate";
}

std::string host_copy_name(std::string_view name) { return concat(name, "@host"); }

std::string snapshot_name(std::string_view name) { return concat(name, kSnapshotSuffix); }

std::string_view copied_name(std::string_view name) { return name.substr(0, name.find('@')); }

bool ScheduleBuffer::is_snapshot() const {
  return tier == Tier::kHost && !persistent && name.ends_with(kSnapshotSuffix);
}

Role Schedule::role(int buffer) const {
  if (!is_activation(buffer)) return buffers[static_cast<std::size_t>(buffer)].role;
  const bool gradient = (buffer - static_cast<int>(buffers.size())) % 2 != 0;
  return gradient ? Role::kActivationGradient : Role::kActivation;
}

std::string Schedule::name_of(int buffer) const {
  if (buffer < 0 || buffer >= buffer_count()) return concat('?', buffer);
  if (!is_activation(buffer)) return buffers[static_cast<std::size_t>(buffer)].name;
  const int number = (buffer - static_cast<int>(buffers.size())) / 2;
  const auto count = static_cast<int>(layers.size());
  return concat(role(buffer) == Role::kActivation ? "x." : "d.",
                layers[static_cast<std::size_t>(number % count)].name, ".m", number / count);
}

std::int64_t Schedule::unit_numel(int unit, Role role) const {
  const ScheduleUnit& of = units[static_cast<std::size_t>(unit)];
  return role == Role::kFrozen ? of.frozen_numel : of.trainable_numel;
}

int Schedule::find(Role role, int unit) const {
  const auto found = std::ranges::find_if(buffers, [&](const ScheduleBuffer& buffer) {
    return buffer.role == role && buffer.unit == unit && buffer.tier == Tier::kDevice;
  });
  return found == buffers.end() ? -1 : static_cast<int>(found - buffers.begin());
}

bool Schedule::reads_from_host(int unit) const {
  return std::ranges::any_of(buffers, [unit](const ScheduleBuffer& buffer) {
    return buffer.persistent && buffer.unit == unit && buffer.tier == Tier::kHost &&
           (buffer.role == Role::kFrozen ||
            (buffer.role == Role::kParameter && copied_name(buffer.name) == buffer.name));
  });
}

bool Schedule::is_gathered(int unit, Role flat) const {
  if (unit_numel(unit, flat) == 0) return false;
  const AxisSet sharded = flat == Role::kFrozen ? placement.frozen_axes() : placement.parameter;
  return !sharded.empty() || reads_from_host(unit);
}

std::int64_t Schedule::gathered_numel(int unit) const {
  std::int64_t numel = 0;
  for (const Role flat : {Role::kParameter, Role::kFrozen}) {
    if (is_gathered(unit, flat)) numel += unit_numel(unit, flat);
  }
  return numel;
}

bool Schedule::updates_on_host(int unit) const {
  return std::ranges::any_of(buffers, [unit](const ScheduleBuffer& buffer) {
    return buffer.persistent && buffer.unit == unit && buffer.tier == Tier::kHost &&
           buffer.role != Role::kFrozen;
  });
}

int Schedule::find(std::string_view name) const {
  const auto found = std::ranges::find(buffers, name, &ScheduleBuffer::name);
  return found == buffers.end() ? -1 : static_cast<int>(found - buffers.begin());
}

}  // namespace tessera
