#include "tessera/sharding/state_buffers.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

/// By unit.
std::vector<bool> offloaded_units(const ModelLayout& layout, double share) {
  std::vector<bool> offloaded(layout.units.size());
  const auto trained = std::ranges::count_if(
      layout.units, [](const Unit& unit) { return unit.trainable.padded_numel > 0; });
  auto left = std::llround(share * static_cast<double>(trained));
  for (std::size_t u = layout.units.size(); u-- > 0 && left > 0;) {
    if (layout.units[u].trainable.padded_numel == 0) continue;
    offloaded[u] = true;
    --left;
  }
  return offloaded;
}

}  // namespace

std::vector<ScheduleBuffer> state_buffers(const ModelLayout& layout, const StateOptions& options) {
  const Placement placement = ShardNesting(options.mesh, options.placement).placement();
  const std::vector<bool> offloaded = offloaded_units(layout, options.offload_optimizer);
  std::vector<ScheduleBuffer> buffers;
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    const Unit& unit = layout.units[static_cast<std::size_t>(u)];
    const bool on_host = offloaded[static_cast<std::size_t>(u)];
    const Tier home = on_host ? Tier::kHost : Tier::kDevice;
    const auto add = [&](const std::string& what, Role role, DType format, AxisSet sharded,
                         std::int64_t numel, Tier tier = Tier::kDevice) {
      if (numel == 0) return;
      buffers.push_back({.name = unit.name + "." + what,
                         .role = role,
                         .unit = u,
                         .format = format,
                         .sharded = sharded,
                         .numel = numel / options.mesh.size(sharded),
                         .persistent = true,
                         .tier = tier});
    };
    const std::int64_t trainable = unit.trainable.padded_numel;
    add("parameter", Role::kParameter, options.parameter_dtype, placement.parameter, trainable);
    add("frozen", Role::kFrozen, options.parameter_dtype, placement.parameter,
        unit.frozen.padded_numel);
    if (on_host || options.parameter_dtype != DType::kFloat32) {
      add("master", Role::kMaster, DType::kFloat32, placement.optimizer, trainable, home);
    }
    for (const std::string& tensor : options.optimizer_tensors) {
      add(tensor, Role::kOptimizer, DType::kFloat32, placement.optimizer, trainable, home);
    }
    // A step that is skipped leaves it as it is: so it is a part of the state.
    if (on_host && options.parameter_dtype != DType::kFloat32) {
      add(host_copy_name("parameter"), Role::kParameter, options.parameter_dtype,
          placement.optimizer, trainable, home);
    }
  }
  return buffers;
}

}  // namespace tessera
