#include "rank_state.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"

namespace tessera {
namespace {

/// Elements to write at a time: what fits the first-level cache, or keeps a GPU busy.
std::int64_t write_chunk(const Device& device) {
  return device.kind() == DeviceKind::kCuda ? std::int64_t{1} << 20 : 8192;
}

/// `range` of a view that begins at element `origin` of the flat parameter.
TensorView part(const TensorView& view, std::int64_t origin, const Range& range) {
  return view.narrow(0, range.begin - origin, range.numel);
}

void check_made_for(const Schedule& schedule, const ModelLayout& layout) {
  const bool same = std::ranges::equal(
      schedule.units, layout.units, [](const ScheduleUnit& planned, const Unit& unit) {
        return planned.trainable_numel == unit.trainable.padded_numel &&
               planned.frozen_numel == unit.frozen.padded_numel;
      });
  require(same && schedule.layers.size() == layout.layers.size(), ErrorCode::kInvalidArgument,
          "the schedule, of ", schedule.layers.size(), " layers in ", schedule.units.size(),
          " units, was planned for another layout: this one has ", layout.layers.size(),
          " layers in ", layout.units.size(), " units");
}

}  // namespace

RankState::RankState(const Schedule& schedule, const ModelLayout& layout, int rank, Memory& memory)
    : schedule_(schedule),
      layout_(layout),
      nesting_(schedule.mesh, schedule.placement),
      rank_(rank),
      device_(memory.device()),
      kernels_(kernels_for(memory.device())) {
  check_made_for(schedule, layout);
  units_.resize(layout.units.size());
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) allocate_unit(u, memory);
  for (const std::int64_t numel : schedule.parameter_slots) {
    parameter_slots_.push_back(Tensor::empty(memory, Shape{numel}, schedule.parameter_dtype,
                                             MemoryCategory::kUnshardedParameters,
                                             "parameter slot"));
  }
  for (const std::int64_t numel : schedule.gradient_slots) {
    gradient_slots_.push_back(Tensor::empty(memory, Shape{numel}, schedule.reduce_dtype,
                                            MemoryCategory::kUnshardedGradients, "gradient slot"));
  }
}

void RankState::allocate_unit(int index, Memory& memory) {
  UnitState& state = units_[static_cast<std::size_t>(index)];
  const Unit& unit = layout_.units[static_cast<std::size_t>(index)];
  const DType dtype = schedule_.parameter_dtype;
  if (unit.frozen.padded_numel > 0) {
    state.frozen = Tensor::empty(memory, Shape{parameter_range(index, false).numel}, dtype,
                                 MemoryCategory::kParameters, unit.name + " frozen parameters");
  }
  if (unit.trainable.padded_numel == 0) return;
  const Range parameters = parameter_range(index, true);
  const Range shard = optimizer_range(index);
  const auto gradient =
      nesting_.range(unit.trainable.padded_numel, schedule_.gradient_buffer_axes(), rank_);
  state.trainable = Tensor::empty(memory, Shape{parameters.numel}, dtype,
                                  MemoryCategory::kParameters, unit.name + " parameters");
  state.gradient = Tensor::empty(memory, Shape{gradient.numel}, DType::kFloat32,
                                 MemoryCategory::kGradients, unit.name + " gradient");
  const auto optimizer_state = [&](const char* what) {
    return Tensor::empty(memory, Shape{shard.numel}, DType::kFloat32, MemoryCategory::kOptimizer,
                         unit.name + what);
  };
  state.m = optimizer_state(" first moment");
  state.v = optimizer_state(" second moment");
  state.master = dtype == DType::kFloat32
                     ? state.trainable.narrow(0, shard.begin - parameters.begin, shard.numel)
                     : optimizer_state(" master weights");
}

void RankState::initialize(Stream& stream, std::uint64_t seed) {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    initialize(u, true, stream, seed);
    initialize(u, false, stream, seed);
  }
}

void RankState::initialize(int index, bool trainable, Stream& stream, std::uint64_t seed) {
  if (flat(index, trainable).padded_numel == 0) return;
  const UnitState& state = unit(index);
  const auto zero = [&](const TensorView& view) { kernels_.fill({.dst = view}, stream); };
  zero(trainable ? state.trainable : state.frozen);  // padding included
  if (trainable) {
    for (const Tensor* tensor : {&state.gradient, &state.m, &state.v}) zero(*tensor);
    if (schedule_.parameter_dtype != DType::kFloat32) zero(state.master);
  }
  write(index, trainable, stream,
        [&](const ParameterSpec& spec, std::int64_t first, DeviceArray<float>& chunk,
            std::int64_t count) {
          const Initializer& init = spec.initializer;
          if (init.kind == Initializer::Kind::kConstant) {
            kernels_.fill({.dst = chunk.view(0, count), .value = init.mean}, stream);
          } else {
            kernels_.fill_normal({.dst = chunk.view(0, count),
                                  .mean = init.mean,
                                  .stddev = init.stddev,
                                  .key = {seed, stream_of(spec.name)},
                                  .first_index = first},
                                 stream);
          }
        });
}

void RankState::set_parameters(const ParameterValues& values_of, Stream& stream) {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    for (const bool trainable : {true, false}) {
      write(u, trainable, stream,
            [&](const ParameterSpec& spec, std::int64_t first, DeviceArray<float>& chunk,
                std::int64_t count) {
              const std::span<const float> values = values_of(spec.name);
              require(static_cast<std::int64_t>(values.size()) == spec.shape.numel(),
                      ErrorCode::kInvalidArgument, "parameter '", spec.name, "' has ",
                      spec.shape.numel(), " elements, but ", values.size(), " were given");
              stream.synchronize();  // the chunk before may still be on its way
              std::copy_n(values.begin() + first, count, chunk.host());
              chunk.upload(stream, count);
            });
    }
  }
}

/// Writes this rank's part of a flat parameter and of its master weights, in chunks that `produce`
/// makes.
void RankState::write(int index, bool trainable, Stream& stream, const ProduceChunk& produce) {
  if (device_.kind() == DeviceKind::kSim) return;  // its memory has no contents
  const std::int64_t most = write_chunk(device_);
  DeviceArray<float> chunk(device_, most);
  const auto write_range = [&](const FlatTensor& tensor, const TensorView& view,
                               const Range& range) {
    const std::int64_t end = std::min(range.end(), tensor.offset + tensor.spec.shape.numel());
    for (std::int64_t e = std::max(range.begin, tensor.offset); e < end; e += most) {
      const std::int64_t count = std::min(most, end - e);
      produce(tensor.spec, e - tensor.offset, chunk, count);
      kernels_.cast({.src = chunk.view(0, count), .dst = part(view, range.begin, {e, count})},
                    stream);
    }
  };
  const UnitState& state = unit(index);
  for (const FlatTensor& tensor : flat(index, trainable).tensors) {
    write_range(tensor, trainable ? state.trainable : state.frozen,
                parameter_range(index, trainable));
    if (trainable && schedule_.parameter_dtype != DType::kFloat32) {
      write_range(tensor, state.master, optimizer_range(index));
    }
  }
  stream.synchronize();  // the chunk dies here
}

const FlatParameter& RankState::flat(int index, bool trainable) const {
  const Unit& u = layout_.units[static_cast<std::size_t>(index)];
  return trainable ? u.trainable : u.frozen;
}

Range RankState::parameter_range(int index, bool trainable) const {
  return nesting_.range(flat(index, trainable).padded_numel, nesting_.placement().parameter, rank_);
}

Range RankState::optimizer_range(int index) const {
  return nesting_.range(flat(index, true).padded_numel, nesting_.placement().optimizer, rank_);
}

Range RankState::finest_range(int index, bool trainable) const {
  return nesting_.range(flat(index, trainable).padded_numel, nesting_.all_axes(), rank_);
}

TensorView RankState::parameter_buffer(int index, bool trainable) const {
  return trainable ? unit(index).trainable : unit(index).frozen;
}

TensorView RankState::in_parameter_slot(int slot, int index, bool trainable) const {
  const std::int64_t first = trainable ? 0 : flat(index, true).padded_numel;
  return parameter_slot(slot).narrow(0, first, flat(index, trainable).padded_numel);
}

TensorView RankState::updated_parameters(int index) const {
  return part(unit(index).trainable, parameter_range(index, true).begin, optimizer_range(index));
}

TensorView RankState::parameter_slot(int slot) const {
  return parameter_slots_[static_cast<std::size_t>(slot)];
}

TensorView RankState::gradient_slot(int slot, int index) const {
  return gradient_slot(slot).narrow(0, 0, flat(index, true).padded_numel);
}

TensorView RankState::gradient_slot(int slot) const {
  return gradient_slots_[static_cast<std::size_t>(slot)];
}

TensorView RankState::gradient_buffer(int index) const { return unit(index).gradient; }

TensorView RankState::gradient_range(int index, AxisSet axes) const {
  const std::int64_t padded = flat(index, true).padded_numel;
  const Range held = nesting_.range(padded, schedule_.gradient_buffer_axes(), rank_);
  return part(unit(index).gradient, held.begin, nesting_.range(padded, axes, rank_));
}

TensorView RankState::master(int index) const { return unit(index).master; }
TensorView RankState::first_moment(int index) const { return unit(index).m; }
TensorView RankState::second_moment(int index) const { return unit(index).v; }

TensorView RankState::finest_master(int index, bool trainable) const {
  const Range finest = finest_range(index, trainable);
  if (trainable) return part(unit(index).master, optimizer_range(index).begin, finest);
  return part(unit(index).frozen, parameter_range(index, false).begin, finest);
}

TensorView RankState::tensor_of(TensorView whole, const FlatTensor& tensor) {
  return whole.narrow(0, tensor.offset, tensor.spec.shape.numel()).reshape(tensor.spec.shape);
}

}  // namespace tessera
