#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "device_array.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// Everything that a rank keeps from step to step, allocated once: account_memory() in the flesh.
class RankState {
 public:
  /// Allocates.
  RankState(const Schedule& schedule, const ModelLayout& layout, int rank, Memory& memory);

  /// Parameters by (seed, name, element), everything else zero. As set_parameters, it is done when
  /// it returns; no task is on the stream.
  void initialize(Stream& stream, std::uint64_t seed);
  /// Overwrites the parameters, each rank its own part.
  void set_parameters(const ParameterValues& values_of, Stream& stream);

  const ShardNesting& nesting() const { return nesting_; }
  int rank() const { return rank_; }

  // A unit's parameters: the buffer that stays (this rank's shard, or all), and a slot's part.
  TensorView parameter_buffer(int unit, bool trainable) const;
  TensorView in_parameter_slot(int slot, int unit, bool trainable) const;
  TensorView parameter_slot(int slot) const;  ///< all of it
  /// The part of the trainable parameter buffer that this rank's optimizer shard covers.
  TensorView updated_parameters(int unit) const;

  TensorView gradient_slot(int slot, int unit) const;
  TensorView gradient_slot(int slot) const;  ///< all of it
  TensorView gradient_buffer(int unit) const;
  /// The part of the gradient buffer that this rank has when the state is cut along `axes`.
  TensorView gradient_range(int unit, AxisSet axes) const;

  // Optimizer state of this rank's shard.
  TensorView master(int unit) const;
  TensorView first_moment(int unit) const;
  TensorView second_moment(int unit) const;
  Range optimizer_range(int unit) const;
  /// The finest shard: cut along all axes; every element of the unit belongs to one rank.
  Range finest_range(int unit, bool trainable) const;
  /// The finest shard of the master weights (trainable), or of the parameters (frozen).
  TensorView finest_master(int unit, bool trainable) const;

  /// One tensor of a flat view that holds the whole flat parameter.
  static TensorView tensor_of(TensorView whole, const FlatTensor& tensor);
  const FlatParameter& flat(int unit, bool trainable) const;

 private:
  struct UnitState {
    Tensor trainable, frozen;  ///< parameter dtype
    Tensor gradient;
    Tensor master;  ///< fp32; a view of `trainable` if that is fp32
    Tensor m, v;
  };
  const UnitState& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  void allocate_unit(int index, Memory& memory);
  void initialize(int unit, bool trainable, Stream& stream, std::uint64_t seed);
  /// Fills the first `count` elements of `chunk`, in device memory, with those from `first` on of a
  /// parameter.
  using ProduceChunk = std::function<void(const ParameterSpec&, std::int64_t first,
                                          DeviceArray<float>& chunk, std::int64_t count)>;
  void write(int unit, bool trainable, Stream& stream, const ProduceChunk& produce);
  Range parameter_range(int unit, bool trainable) const;

  const Schedule& schedule_;
  const ModelLayout& layout_;
  ShardNesting nesting_;
  int rank_;
  Device& device_;
  const KernelTable& kernels_;
  std::vector<UnitState> units_;
  std::vector<Tensor> parameter_slots_;
  std::vector<Tensor> gradient_slots_;
};

}  // namespace tessera
