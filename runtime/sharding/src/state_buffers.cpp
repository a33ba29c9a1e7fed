#include "tessera/sharding/state_buffers.h"

namespace tessera {

std::vector<ScheduleBuffer> state_buffers(const ModelLayout& layout, const StateOptions& options) {
  const Placement placement = ShardNesting(options.mesh, options.placement).placement();
  std::vector<ScheduleBuffer> buffers;
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    const Unit& unit = layout.units[static_cast<std::size_t>(u)];
    const auto add = [&](const std::string& what, Role role, DType format, AxisSet sharded,
                         std::int64_t numel) {
      if (numel == 0) return;
      buffers.push_back({.name = unit.name + "." + what,
                         .role = role,
                         .unit = u,
                         .format = format,
                         .sharded = sharded,
                         .numel = numel / options.mesh.size(sharded),
                         .persistent = true});
    };
    const std::int64_t trainable = unit.trainable.padded_numel;
    add("parameter", Role::kParameter, options.parameter_dtype, placement.parameter, trainable);
    add("frozen", Role::kFrozen, options.parameter_dtype, placement.parameter,
        unit.frozen.padded_numel);
    if (options.parameter_dtype != DType::kFloat32) {
      add("master", Role::kMaster, DType::kFloat32, placement.optimizer, trainable);
    }
    for (const std::string& tensor : options.optimizer_tensors) {
      add(tensor, Role::kOptimizer, DType::kFloat32, placement.optimizer, trainable);
    }
  }
  return buffers;
}

}  // namespace tessera
