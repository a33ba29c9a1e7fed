#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/state_buffers.h"

namespace tessera {

/// One tensor of a rank's training state: a unit's flat parameter, or what goes with it element by
/// element.
struct StateTensor {
  std::string name;  ///< "h.3.parameter", "h.3.master", "h.3.first-moment", ...
  Role role = Role::kParameter;
  int unit = 0;
  DType format = DType::kFloat32;
  AxisSet sharded{};  ///< axes along which it is sharded
  Tier tier = Tier::kDevice;
  Range range;      ///< the elements of the unit's flat parameter that this rank has
  TensorView view;  ///< (range.numel)
};

/// A stretch of one parameter's elements within a state tensor.
struct StatePiece {
  const ParameterSpec* parameter = nullptr;
  Range elements;          ///< of the parameter, in row-major order
  std::int64_t first = 0;  ///< of them, in the unit's flat parameter
  TensorView view;         ///< (elements.numel), in the state tensor's format
};

/// Gives a parameter's values by its name, in row-major order.
using ParameterValues = std::function<std::span<const float>(const std::string& name)>;

/// One rank's state from step to step: parameters, master weights, the optimizer's tensors.
/// Made of layout, placement and optimizer; schedules run over it (executor.h). The ranks' tensors
/// together hold every element, and more than once where they are replicated.
///
/// Host thread only, between steps.
class TrainingState {
 public:
  /// Allocates; `layout` and `memory` must outlive the state. Contents are zero.
  TrainingState(const ModelLayout& layout, const StateOptions& options, int rank, Memory& memory);
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  const ModelLayout& layout() const { return layout_; }
  const StateOptions& options() const { return options_; }
  const ShardNesting& nesting() const { return nesting_; }
  int rank() const { return rank_; }
  /// True if some of it is on the host.
  bool is_offloaded() const;

  std::vector<StateTensor>::const_iterator begin() const { return tensors_.begin(); }
  std::vector<StateTensor>::const_iterator end() const { return tensors_.end(); }
  /// Throws Error{kInvalidArgument} that names the nearest if there is none of this name.
  const StateTensor& at(std::string_view name) const;
  /// Null if the unit has none.
  const StateTensor* find(Role role, int unit) const;
  /// The fp32 values that the optimizer updates: the master weights; where parameters are fp32, the
  /// part of them that belongs to this rank's optimizer. Null if the unit has nothing to train.
  TensorView master(int unit) const;
  /// The parameters' stretches in a tensor, in order; padding belongs to none.
  std::vector<StatePiece> pieces(const StateTensor& tensor) const;

  /// Elements [first, first + values.size()) of the unit's flat parameter, as fp32. This rank must
  /// have them, else Error{kInvalidArgument}. Each blocks until it is done.
  void read(std::string_view name, std::int64_t first, std::span<float> values,
            Stream& stream) const;
  void write(std::string_view name, std::int64_t first, std::span<const float> values,
             Stream& stream);

  /// Parameters by (seed, name, element), everything else zero. Blocks until it is done; no task
  /// may be on the stream.
  void initialize(std::uint64_t seed, Stream& stream);
  /// Overwrites the parameters and master weights, this rank its own part. `values` is asked for
  /// every parameter, perhaps repeatedly. Throws Error{kInvalidArgument} if a size does not match.
  void set_parameters(const ParameterValues& values, Stream& stream);

 private:
  using ProduceChunk = std::function<void(const ParameterSpec&, const Range& elements, TensorView)>;
  void write_parameters(const ProduceChunk& produce, Stream& stream);
  const FlatParameter& flat(const StateTensor& tensor) const;
  TensorView part(const StateTensor& tensor, const Range& range) const;

  const ModelLayout& layout_;
  StateOptions options_;
  ShardNesting nesting_;
  int rank_;
  Device& device_;
  const KernelTable& kernels_;
  std::vector<StateTensor> tensors_;
  std::vector<Tensor> storage_;
};

}  // namespace tessera
