#include "tessera/sharding/account.h"

#include <algorithm>

#include "tessera/kernels/exact_sum.h"

namespace tessera {
namespace {

std::int64_t bytes_of(std::int64_t numel, DType dtype) {
  return numel * static_cast<std::int64_t>(size_of(dtype));
}

// Adds one call of a collective on a buffer of `bytes`; empty flat parameters are never sent.
void charge(Traffic& traffic, CollectiveKind kind, std::int64_t bytes, int group_size) {
  if (bytes == 0) return;
  ++traffic.calls_of(kind);
  traffic.sent_of(kind) += sent_bytes(kind, bytes, group_size);
}

// Integers: the number of items, and the exact sums of losses and squares.
void charge_scalars(Traffic& traffic, ActionKind kind, int ranks) {
  constexpr auto kWord = static_cast<std::int64_t>(sizeof(std::int64_t));
  if (ranks == 1) return;
  if (kind == ActionKind::kCountItems) charge(traffic, CollectiveKind::kAllReduce, kWord, ranks);
  if (kind == ActionKind::kExchange) {
    charge(traffic, CollectiveKind::kAllReduce, 2 * kExactSumWords * kWord, ranks);
  }
}

}  // namespace

Traffic account_traffic(const Schedule& schedule) {
  Traffic traffic;
  const Mesh& mesh = schedule.mesh;
  const DType parameter_dtype = schedule.parameter_dtype;
  const int buffer_parts = mesh.size(schedule.gradient_buffer_axes());
  const int optimizer_parts = mesh.size(schedule.placement.optimizer);
  for (const Action& action : schedule.actions) {
    if (action.unit < 0) {
      charge_scalars(traffic, action.kind, mesh.world_size());
      continue;
    }
    const ScheduleUnit& unit = schedule.units.at(static_cast<std::size_t>(action.unit));
    const std::int64_t numel = unit.trainable_numel;
    const int group_size = mesh.size(action.axes);
    switch (action.kind) {
      case ActionKind::kUnshard:
        charge(traffic, CollectiveKind::kAllGather, bytes_of(numel, parameter_dtype), group_size);
        charge(traffic, CollectiveKind::kAllGather, bytes_of(unit.frozen_numel, parameter_dtype),
               group_size);
        break;
      case ActionKind::kReduceScatter:
        charge(traffic, CollectiveKind::kReduceScatter,
               action.slot >= 0 ? bytes_of(numel, schedule.reduce_dtype)
                                : bytes_of(numel / buffer_parts, DType::kFloat32),
               group_size);
        break;
      case ActionKind::kAllReduce:
        charge(traffic, CollectiveKind::kAllReduce,
               bytes_of(numel / optimizer_parts, DType::kFloat32), group_size);
        break;
      case ActionKind::kGatherGradient:
        charge(traffic, CollectiveKind::kAllGather,
               bytes_of(numel / optimizer_parts, DType::kFloat32), group_size);
        break;
      case ActionKind::kGatherParameter:
        charge(traffic, CollectiveKind::kAllGather,
               bytes_of(numel / mesh.size(schedule.placement.parameter), parameter_dtype),
               group_size);
        break;
      default:
        break;  // computes, or exchanges scalars only
    }
  }
  return traffic;
}

MemoryUse account_memory(const Schedule& schedule) {
  MemoryUse use;
  const Mesh& mesh = schedule.mesh;
  const Placement& placement = schedule.placement;
  const auto hold = [&use](MemoryCategory category, std::int64_t numel, DType dtype) {
    use[category] += allocation_bytes(bytes_of(numel, dtype));
  };

  std::vector<bool> trained(schedule.units.size(), false);
  for (const ScheduleLayer& layer : schedule.layers) {
    for (int unit : layer.gradients) trained.at(static_cast<std::size_t>(unit)) = true;
  }
  for (std::size_t i = 0; i < schedule.units.size(); ++i) {
    const ScheduleUnit& unit = schedule.units[i];
    for (std::int64_t numel : {unit.trainable_numel, unit.frozen_numel}) {
      hold(MemoryCategory::kParameters, numel / mesh.size(placement.parameter),
           schedule.parameter_dtype);
    }
    if (trained[i]) {
      hold(MemoryCategory::kGradients,
           unit.trainable_numel / mesh.size(schedule.gradient_buffer_axes()), DType::kFloat32);
    }
    // Two moments, and the master weights unless the parameters themselves are fp32.
    const int states = schedule.parameter_dtype == DType::kFloat32 ? 2 : 3;
    for (int state = 0; state < states; ++state) {
      hold(MemoryCategory::kOptimizer, unit.trainable_numel / mesh.size(placement.optimizer),
           DType::kFloat32);
    }
  }
  for (std::int64_t numel : schedule.parameter_slots) {
    hold(MemoryCategory::kUnshardedParameters, numel, schedule.parameter_dtype);
  }
  for (std::int64_t numel : schedule.gradient_slots) {
    hold(MemoryCategory::kUnshardedGradients, numel, schedule.reduce_dtype);
  }
  return use;
}

}  // namespace tessera
