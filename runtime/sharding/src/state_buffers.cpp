#include "tessera/sharding/state_buffers.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/core/error.h"

namespace tessera {
namespace {

bool is_trained(const Unit& unit) { return unit.trainable.padded_numel > 0; }

/// By unit: the last ones of those that are counted.
std::vector<bool> last_units(const ModelLayout& layout, double share,
                             const std::function<bool(const Unit&)>& counts) {
  std::vector<bool> offloaded(layout.units.size());
  const auto all = std::ranges::count_if(layout.units, counts);
  auto left = std::llround(share * static_cast<double>(all));
  for (std::size_t u = layout.units.size(); u-- > 0 && left > 0;) {
    if (!counts(layout.units[u])) continue;
    offloaded[u] = true;
    --left;
  }
  return offloaded;
}

}  // namespace

std::vector<ScheduleBuffer> state_buffers(const ModelLayout& layout, const StateOptions& options) {
  const Placement placement = ShardNesting(options.mesh, options.placement).placement();
  require(options.offload_parameters == 0.0 ||
              (placement.parameter == placement.optimizer && !placement.frozen),
          ErrorCode::kConfig,
          "parameters on the host are sharded as the optimizer's state is (over ",
          to_string(placement.optimizer), "), but this strategy shards them over ",
          to_string(placement.frozen_axes()),
          "; take full_shard, hybrid_shard or no_shard, or leave them on the device");
  const std::vector<bool> updated_there = last_units(layout, options.offload_optimizer, is_trained);
  const std::vector<bool> read_from_there = last_units(
      layout, options.offload_parameters,
      [](const Unit& unit) { return unit.trainable.padded_numel + unit.frozen.padded_numel > 0; });
  std::vector<ScheduleBuffer> buffers;
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    const Unit& unit = layout.units[static_cast<std::size_t>(u)];
    const bool parameters_on_host = read_from_there[static_cast<std::size_t>(u)];
    const bool on_host = parameters_on_host || updated_there[static_cast<std::size_t>(u)];
    const Tier home = on_host ? Tier::kHost : Tier::kDevice;
    const Tier read_from = parameters_on_host ? Tier::kHost : Tier::kDevice;
    const auto add = [&](const std::string& what, Role role, DType format, AxisSet sharded,
                         std::int64_t numel, Tier tier) {
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
    const bool updated_elsewhere = on_host && !parameters_on_host;
    add("parameter", Role::kParameter, options.parameter_dtype, placement.parameter, trainable,
        read_from);
    add("frozen", Role::kFrozen, options.parameter_dtype, placement.frozen_axes(),
        unit.frozen.padded_numel, read_from);
    if (updated_elsewhere || options.parameter_dtype != DType::kFloat32) {
      add("master", Role::kMaster, DType::kFloat32, placement.optimizer, trainable, home);
    }
    for (const std::string& tensor : options.optimizer_tensors) {
      add(tensor, Role::kOptimizer, DType::kFloat32, placement.optimizer, trainable, home);
    }
    // A step that is skipped leaves it as it is: so it is a part of the state.
    if (updated_elsewhere && options.parameter_dtype != DType::kFloat32) {
      add(host_copy_name("parameter"), Role::kParameter, options.parameter_dtype,
          placement.optimizer, trainable, home);
    }
  }
  return buffers;
}

}  // namespace tessera
