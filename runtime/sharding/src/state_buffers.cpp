#include "tessera/sharding/state_buffers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "pass_tools.h"
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

/// By unit: the last ones of those that are counted.
std::vector<bool> last_units(const std::vector<ScheduleUnit>& units, double share,
                             const std::function<bool(const ScheduleUnit&)>& counts) {
  std::vector<bool> offloaded(units.size());
  const auto all = std::ranges::count_if(units, counts);
  auto left = std::llround(share * static_cast<double>(all));
  for (std::size_t u = units.size(); u-- > 0 && left > 0;) {
    if (!counts(units[u])) continue;
    offloaded[u] = true;
    --left;
  }
  return offloaded;
}

/// What a placement must be for parameters away from the device.
void check_homes(const std::vector<ScheduleUnit>& units, const StateOptions& options,
                 const Placement& placement) {
  if (options.offload_parameters == 0.0 && options.disk_parameters == 0.0) return;
  const bool frozen_alone = moves_frozen_alone(placement, has_frozen(units));
  require(
      !frozen_alone || !placement.frozen->empty(), ErrorCode::kConfig,
      "what leaves the device is gathered in one piece, but frozen parameters are on every rank "
      "whole and trainable ones sharded over ",
      to_string(placement.parameter),
      "; shard frozen parameters (--strategy full_shard), or leave out --offload-parameters");
}

}  // namespace

std::int64_t flat_alignment(const std::vector<OptimizerTensor>& tensors) {
  std::int64_t alignment = kFlatAlignment;
  for (const OptimizerTensor& tensor : tensors) alignment = std::lcm(alignment, tensor.block);
  return alignment;
}

bool has_frozen(const std::vector<ScheduleUnit>& units) {
  return std::ranges::any_of(
      units, [](const ScheduleUnit& unit) { return unit.frozen_numel + unit.quantized_bytes > 0; });
}

std::vector<bool> last_trained_units(const std::vector<ScheduleUnit>& units, double share) {
  return last_units(units, share,
                    [](const ScheduleUnit& unit) { return unit.trainable_numel > 0; });
}

std::vector<ScheduleUnit> schedule_units(const ModelLayout& layout) {
  std::vector<ScheduleUnit> units;
  for (const Unit& unit : layout.units) {
    units.push_back({.name = unit.name,
                     .trainable_numel = unit.trainable.padded_numel,
                     .frozen_numel = unit.frozen.padded_numel,
                     .quantized_bytes = unit.quantized.padded_numel,
                     .decoded_numel = unit.quantized.decoded_numel});
  }
  return units;
}

std::vector<ScheduleBuffer> state_buffers(const ModelLayout& layout, const StateOptions& options) {
  std::vector<ScheduleBuffer> buffers = state_buffers(schedule_units(layout), options);
  for (const Unit& unit : layout.units) check_alignment(unit.trainable, options, unit.name);
  return buffers;
}

std::vector<ScheduleBuffer> state_buffers(const std::vector<ScheduleUnit>& units,
                                          const StateOptions& options) {
  const Placement placement = ShardNesting(options.mesh, options.placement).placement();
  check_homes(units, options, placement);
  const std::vector<bool> updated_there = last_trained_units(units, options.offload_optimizer);
  const std::vector<bool> on_disk = last_trained_units(units, options.disk_optimizer);
  const bool frozen_alone = moves_frozen_alone(placement, has_frozen(units));
  const auto has_parameters = [&](const ScheduleUnit& unit) {
    return (frozen_alone ? 0 : unit.trainable_numel) + unit.frozen_numel + unit.quantized_bytes > 0;
  };
  const std::vector<bool> read_from_host =
      last_units(units, options.offload_parameters, has_parameters);
  const std::vector<bool> read_from_disk =
      last_units(units, options.disk_parameters, has_parameters);
  std::vector<ScheduleBuffer> buffers;
  for (int u = 0; u < static_cast<int>(units.size()); ++u) {
    const ScheduleUnit& unit = units[static_cast<std::size_t>(u)];
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
    const std::int64_t trainable = unit.trainable_numel;
    const bool updated_elsewhere = on_host && parameter_home == Tier::kDevice;
    add("parameter", Role::kParameter, options.parameter_dtype, placement.parameter, trainable,
        parameter_home);
    add("frozen", Role::kFrozen, options.parameter_dtype, placement.frozen_axes(),
        unit.frozen_numel, frozen_home);
    add("quantized", Role::kQuantized, DType::kUInt8, placement.frozen_axes(), unit.quantized_bytes,
        frozen_home);
    if (updated_elsewhere || options.parameter_dtype != DType::kFloat32) {
      add("master", Role::kMaster, DType::kFloat32, placement.optimizer, trainable, home);
    }
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
