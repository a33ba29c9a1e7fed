#include "tessera/sharding/state_buffers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "planning.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// Blocks lie in one tensor and one shard.
void check_alignment(const FlatParameter& flat, const StateOptions& options,
                     const std::string& unit) {
  const std::int64_t alignment = flat_alignment(options.optimizer_tensors);
  if (alignment == kFlatAlignment) return;
  bool fits = flat.padded_numel % (options.mesh.world_size() * alignment) == 0;
  for (const FlatTensor& tensor : flat.tensors) fits = fits && tensor.offset % alignment == 0;
  require(fits, ErrorCode::kInvalidArgument, "unit ", unit, " is not laid out for blocks of ",
          alignment, " elements, which the optimizer has; give make_layout() its flat_alignment()");
}

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

/// What a placement must be for parameters away from the device.
void check_homes(const ModelLayout& layout, const StateOptions& options,
                 const Placement& placement) {
  if (options.offload_parameters == 0.0 && options.disk_parameters == 0.0) return;
  const bool frozen_alone = moves_frozen_alone(placement, has_frozen(layout));
  require(
      !frozen_alone || !placement.frozen->empty(), ErrorCode::kConfig,
      "what leaves the device is gathered in one piece, but frozen parameters are on every rank "
      "whole and trainable ones sharded over ",
      to_string(placement.parameter),
      "; shard frozen parameters (`strategy` full_shard), or leave out `offload_parameters`");
}

}  // namespace

std::int64_t flat_alignment(const std::vector<OptimizerTensor>& tensors) {
  std::int64_t alignment = kFlatAlignment;
  for (const OptimizerTensor& tensor : tensors) alignment = std::lcm(alignment, tensor.block);
  return alignment;
}

bool has_frozen(const ModelLayout& layout) {
  return std::ranges::any_of(layout.units, [](const Unit& unit) {
    return unit.frozen.padded_numel + unit.quantized.padded_numel > 0;
  });
}

std::vector<bool> last_trained_units(const ModelLayout& layout, double share) {
  return last_units(layout, share, is_trained);
}

std::vector<ScheduleBuffer> state_buffers(const ModelLayout& layout, const StateOptions& options) {
  const Placement placement = ShardNesting(options.mesh, options.placement).placement();
  check_homes(layout, options, placement);
  const std::vector<bool> updated_there = last_trained_units(layout, options.offload_optimizer);
  const std::vector<bool> on_disk = last_trained_units(layout, options.disk_optimizer);
  const bool frozen_alone = moves_frozen_alone(placement, has_frozen(layout));
  const auto has_parameters = [&](const Unit& unit) {
    return (frozen_alone ? 0 : unit.trainable.padded_numel) + unit.frozen.padded_numel +
               unit.quantized.padded_numel >
           0;
  };
  const std::vector<bool> read_from_host =
      last_units(layout, options.offload_parameters, has_parameters);
  const std::vector<bool> read_from_disk =
      last_units(layout, options.disk_parameters, has_parameters);
  std::vector<ScheduleBuffer> buffers;
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    const Unit& unit = layout.units[static_cast<std::size_t>(u)];
    const Tier frozen_home = read_from_disk[static_cast<std::size_t>(u)]   ? Tier::kDisk
                             : read_from_host[static_cast<std::size_t>(u)] ? Tier::kHost
                                                                           : Tier::kDevice;
    const Tier parameter_home = frozen_alone ? Tier::kDevice : frozen_home;
    const bool disk = on_disk[static_cast<std::size_t>(u)];
    const bool on_host =
        disk || parameter_home != Tier::kDevice || updated_there[static_cast<std::size_t>(u)];
    const Tier home = disk ? Tier::kDisk : on_host ? Tier::kHost : Tier::kDevice;
    const auto add = [&](const std::string& what, Role role, DType format, AxisSet sharded,
                         std::int64_t numel, Tier tier, std::int64_t block = 1) {
      if (numel == 0) return;
      buffers.push_back({.name = unit.name + "." + what,
                         .kind = BufferKind::kState,
                         .role = role,
                         .tensor = role == Role::kOptimizer ? what : "",
                         .unit = u,
                         .format = format,
                         .block = block,
                         .sharded = sharded,
                         .numel = numel / options.mesh.size(sharded) / block,
                         .persistent = true,
                         .tier = tier});
    };
    const std::int64_t trainable = unit.trainable.padded_numel;
    const bool updated_elsewhere = on_host && parameter_home == Tier::kDevice;
    add("parameter", Role::kParameter, options.parameter_dtype, placement.parameter, trainable,
        parameter_home);
    add("frozen", Role::kFrozen, options.parameter_dtype, placement.frozen_axes(),
        unit.frozen.padded_numel, frozen_home);
    add("quantized", Role::kQuantized, DType::kUInt8, placement.frozen_axes(),
        unit.quantized.padded_numel, frozen_home);
    if (updated_elsewhere || options.parameter_dtype != DType::kFloat32) {
      add("master", Role::kMaster, DType::kFloat32, placement.optimizer, trainable, home);
    }
    check_alignment(unit.trainable, options, unit.name);
    for (const OptimizerTensor& tensor : options.optimizer_tensors) {
      add(tensor.name, Role::kOptimizer, tensor.format, placement.optimizer, trainable, home,
          tensor.block);
    }
    // A step that is skipped leaves it as it is: so it is a part of the state.
    if (updated_elsewhere && options.parameter_dtype != DType::kFloat32) {
      add("parameter@host", Role::kParameter, options.parameter_dtype, placement.optimizer,
          trainable, Tier::kHost);
      if (trainable > 0) buffers.back().kind = BufferKind::kCopy;
    }
  }
  return buffers;
}

}  // namespace tessera
