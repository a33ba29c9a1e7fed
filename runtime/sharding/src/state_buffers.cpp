#include "tessera/sharding/state_buffers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "passes/pass_tools.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// Blocks lie in one tensor and one shard.
void check_alignment(const FlatParameter& flat, const StateOptions& options,
                     const std::string& unit) {
  const std::int64_t alignment = flat_alignment(options.optimizer_tensors);
  if (alignment == kFlatAlignment) return;
  bool fits = flat.padded_numel % (flat_parts(options.mesh) * alignment) == 0;
  for (const FlatTensor& tensor : flat.tensors) fits = fits && tensor.offset % alignment == 0;
  require(fits, ErrorCode::kInvalidArgument, "unit ", unit, " is not laid out for blocks of ",
          alignment, " elements, which the optimizer has; give make_layout() its flat_alignment()");
}

/// By unit: the last ones of those that are counted, of one pipeline rank's that are no mirrors.
std::vector<bool> last_units(const std::vector<ScheduleUnit>& units, double share, int rank,
                             const std::function<bool(const ScheduleUnit&)>& counts) {
  const auto is_counted = [&](const ScheduleUnit& unit) {
    return unit.rank == rank && unit.mirrors < 0 && counts(unit);
  };
  std::vector<bool> offloaded(units.size());
  const auto all = std::ranges::count_if(units, is_counted);
  auto left = std::llround(share * static_cast<double>(all));
  for (std::size_t u = units.size(); u-- > 0 && left > 0;) {
    if (!is_counted(units[u])) continue;
    offloaded[u] = true;
    --left;
  }
  return offloaded;
}

/// A unit is kept by the pipeline rank that runs its layers.
void set_ranks(std::vector<ScheduleUnit>& units, const ModelLayout& layout,
               const StateOptions& options) {
  const int ranks = options.mesh.size(Axis::kPipeline);
  if (ranks == 1) return;
  std::vector<int> first(units.size(), -1);  // its layer
  for (int l = 0; l < static_cast<int>(layout.layers.size()); ++l) {
    const int rank = options.pipeline.rank_of_stage(options.pipeline.stage_of(l), ranks);
    const LayerLayout& layer = layout.layers[static_cast<std::size_t>(l)];
    for (const ParameterAddress& address : layer.parameters) {
      const auto u = static_cast<std::size_t>(address.unit);
      if (first[u] < 0) {
        first[u] = l;
        units[u].rank = rank;
      }
      require(units[u].rank == rank, ErrorCode::kConfig, "unit ", units[u].name, " has layers ",
              layout.layers[static_cast<std::size_t>(first[u])].name, " and ", layer.name,
              " of different pipeline ranks, ", units[u].rank, " and ", rank,
              "; split the pipeline between units, let units have one layer each, and add up "
              "gradients of tied parameters apart (make_layout's `tied_apart`)");
    }
  }
}

}  // namespace

std::string name_beside(const ScheduleUnit& unit, const ScheduleFlat& flat,
                        const std::string& what) {
  return flat.name == "parameter" ? concat(unit.name, '.', what)
                                  : concat(unit.name, '.', flat.name, '.', what);
}

std::int64_t flat_alignment(const std::vector<OptimizerTensor>& tensors) {
  std::int64_t alignment = kFlatAlignment;
  for (const OptimizerTensor& tensor : tensors) {
    if (!tensor.is_factored()) alignment = std::lcm(alignment, tensor.block);
  }
  return alignment;
}

bool is_factored(const std::vector<OptimizerTensor>& tensors) {
  return std::ranges::any_of(tensors, &OptimizerTensor::is_factored);
}

bool has_frozen(const std::vector<ScheduleUnit>& units) {
  return std::ranges::any_of(units, [](const ScheduleUnit& unit) { return unit.numel(false) > 0; });
}

std::vector<bool> last_trained_units(const std::vector<ScheduleUnit>& units, double share,
                                     int rank) {
  return last_units(units, share, rank,
                    [](const ScheduleUnit& unit) { return unit.numel(true) > 0; });
}

/// Sums of squares of larger matrices would not fit their words.
void check_factored(const FlatParameter& flat) {
  for (const PlacedMatrix& placed : factored_matrices(flat)) {
    const std::int64_t rows = placed.matrix.rows, columns = placed.matrix.columns;
    require(placed.matrix.is_vector() || std::max(rows, columns) <= kFactoredTerms,
            ErrorCode::kConfig, flat.tensors[static_cast<std::size_t>(placed.tensor)].spec.name,
            " has ", rows, " rows and ", columns,
            " columns, and an optimizer that keeps moments by row and column (adafactor) takes "
            "at most ",
            kFactoredTerms, " of each; freeze it, or use another optimizer");
  }
}

std::vector<ScheduleUnit> schedule_units(const ModelLayout& layout, const StateOptions& options) {
  const DType parameter_dtype = options.parameter_dtype;
  const bool factored = is_factored(options.optimizer_tensors);
  std::vector<ScheduleUnit> units;
  for (const Unit& unit : layout.units) {
    units.push_back({.name = unit.name, .mirrors = unit.mirrors});
    for (const FlatParameter& flat : unit.flats) {
      units.back().flats.push_back(
          {.name = flat.name,
           .trainable = flat.trainable,
           .format = flat.quantized ? DType::kUInt8 : flat.dtype.value_or(parameter_dtype),
           .numel = flat.padded_numel,
           .decoded_numel = flat.decoded_numel,
           .matrices = flat.fp8 ? static_cast<int>(flat.tensors.size()) : 0});
      if (!factored || !flat.trainable || unit.mirrors >= 0) continue;
      check_factored(flat);
      ScheduleFlat& out = units.back().flats.back();
      for (const FlatTensor& tensor : flat.tensors) {
        const FactoredCounts counts = factored_counts(tensor.spec);
        out.factored_numbers += counts.numbers;
        out.factored_matrices += counts.matrices;
      }
    }
  }
  set_ranks(units, layout, options);
  return units;
}

std::vector<ScheduleBuffer> state_buffers(const ModelLayout& layout, const StateOptions& options) {
  for (const Unit& unit : layout.units) {
    for (const FlatParameter& flat : unit.flats) {
      if (flat.trainable) check_alignment(flat, options, unit.name);
    }
  }
  return state_buffers(schedule_units(layout, options), options);
}

std::vector<ScheduleBuffer> state_buffers(const std::vector<ScheduleUnit>& units,
                                          const StateOptions& options) {
  const Placement placement = ShardNesting(options.mesh, options.placement).placement();
  const int rank = options.pipeline.rank;
  const std::vector<bool> updated_there =
      last_trained_units(units, options.offload_optimizer, rank);
  const std::vector<bool> on_disk = last_trained_units(units, options.disk_optimizer, rank);
  const bool frozen_alone = moves_frozen_alone(placement, has_frozen(units));
  const auto has_parameters = [&](const ScheduleUnit& unit) {
    return (frozen_alone ? 0 : unit.numel(true)) + unit.numel(false) > 0;
  };
  const std::vector<bool> read_from_host =
      last_units(units, options.offload_parameters, rank, has_parameters);
  const std::vector<bool> read_from_disk =
      last_units(units, options.disk_parameters, rank, has_parameters);
  std::vector<ScheduleBuffer> buffers;
  for (int u = 0; u < static_cast<int>(units.size()); ++u) {
    const ScheduleUnit& unit = units[static_cast<std::size_t>(u)];
    if (unit.rank != rank) continue;
    const bool is_mirror = unit.mirrors >= 0;
    // Its layers read the unit itself where that is here.
    if (is_mirror && units[static_cast<std::size_t>(unit.mirrors)].rank == rank) continue;
    const Tier frozen_home = read_from_disk[static_cast<std::size_t>(u)]   ? Tier::kDisk
                             : read_from_host[static_cast<std::size_t>(u)] ? Tier::kHost
                                                                           : Tier::kDevice;
    const Tier parameter_home = frozen_alone ? Tier::kDevice : frozen_home;
    const bool disk = on_disk[static_cast<std::size_t>(u)];
    const bool on_host =
        disk || parameter_home != Tier::kDevice || updated_there[static_cast<std::size_t>(u)];
    const Tier home = disk ? Tier::kDisk : on_host ? Tier::kHost : Tier::kDevice;
    const bool updated_elsewhere = on_host && parameter_home == Tier::kDevice;
    int f = 0;
    const auto add = [&](const std::string& name, Role role, DType format, AxisSet sharded,
                         Tier tier) -> ScheduleBuffer& {
      const std::int64_t numel = unit.flats[static_cast<std::size_t>(f)].numel;
      buffers.push_back({.name = name,
                         .kind = BufferKind::kState,
                         .role = role,
                         .unit = u,
                         .flat = f,
                         .format = format,
                         .sharded = sharded,
                         .numel = numel / options.mesh.size(sharded),
                         .persistent = true,
                         .tier = tier});
      return buffers.back();
    };
    for (const ScheduleFlat& flat : unit.flats) {
      add(concat(unit.name, '.', flat.name), Role::kParameter, flat.format,
          flat.trainable ? placement.parameter : placement.frozen_axes(),
          flat.trainable ? parameter_home : frozen_home);
      ++f;
    }
    f = 0;
    for (const ScheduleFlat& flat : unit.flats) {
      if (flat.trainable && !is_mirror) {
        const bool is_rounded = flat.format != DType::kFloat32;
        if (updated_elsewhere || is_rounded) {
          add(name_beside(unit, flat, "master"), Role::kMaster, DType::kFloat32,
              placement.optimizer, home);
        }
        for (const OptimizerTensor& tensor : options.optimizer_tensors) {
          ScheduleBuffer& buffer = add(name_beside(unit, flat, tensor.name), Role::kOptimizer,
                                       tensor.format, placement.optimizer, home);
          buffer.tensor = tensor.name;
          buffer.block = tensor.block;
          if (buffer.is_factored()) {
            buffer.sharded = {};
            buffer.numel = flat.factored_numbers;
          } else {
            buffer.numel /= tensor.block;
          }
        }
        // A step that is skipped leaves it as it is: so it is a part of the state.
        if (updated_elsewhere && is_rounded) {
          add(name_beside(unit, flat, "parameter@host"), Role::kParameter, flat.format,
              placement.optimizer, Tier::kHost)
              .kind = BufferKind::kCopy;
        }
      }
      ++f;
    }
  }
  return buffers;
}

}  // namespace tessera
