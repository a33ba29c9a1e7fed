#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/core/disk_store.h"
#include "tessera/core/host_work.h"
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
  int flat = 0;          ///< which of the unit's flat parameters, by index
  std::string tensor{};  ///< of an optimizer's tensor: which, as in OptimizerTensor
  DType format = DType::kFloat32;
  std::int64_t block = 1;  ///< elements of the flat parameter that it has one element for
  AxisSet sharded{};       ///< axes along which it is sharded
  Tier tier = Tier::kDevice;
  Range range;      ///< this rank's elements, of one for each (block) of the unit's flat parameter
  TensorView view;  ///< (range.numel); on disk without data
  std::size_t extent = 0;  ///< on disk: its index in the store
};

/// A stretch of one parameter's elements within a state tensor. Where these are of blocks, all
/// counts are of blocks; where they are of rows and columns, of these.
struct StatePiece {
  const ParameterSpec* parameter = nullptr;
  Range elements;          ///< of the parameter, in row-major order; if it is quantised, bytes
  std::int64_t first = 0;  ///< of them, in the unit's flat parameter
  TensorView view;         ///< (elements.numel), in the state tensor's format; as the tensor's
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
  /// Allocates; `layout` and `memory` must outlive the state. Contents are zero. `disk` says where
  /// the file is of what is on disk, if anything is; its rank is set here. Throws what DiskStore
  /// does, and Error{kConfig} without a folder. `work`, unless null, counts what initialize() and
  /// those who load a state do, and may end it.
  TrainingState(const ModelLayout& layout, const StateOptions& options, int rank, Memory& memory,
                DiskStoreOptions disk = {}, HostWork* work = nullptr);
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  const ModelLayout& layout() const { return layout_; }
  const StateOptions& options() const { return options_; }
  const ShardNesting& nesting() const { return nesting_; }
  int rank() const { return rank_; }
  /// True if some of it is on the host, or on disk.
  bool is_offloaded() const;
  /// The file of what is on disk; null: nothing is, or the state is simulated.
  DiskStore* disk() const { return disk_.get(); }
  HostWork* work() const { return work_; }
  /// Bytes of that file; 0: there is none.
  std::int64_t disk_bytes() const { return disk_ == nullptr ? 0 : disk_->file_bytes(); }

  std::vector<StateTensor>::const_iterator begin() const { return tensors_.begin(); }
  std::vector<StateTensor>::const_iterator end() const { return tensors_.end(); }
  /// Throws Error{kInvalidArgument} that names the nearest if there is none of this name.
  const StateTensor& at(std::string_view name) const;
  /// Null if the flat parameter has none.
  const StateTensor* find(Role role, const FlatId& id) const;
  /// Its flat parameter in the layout.
  const FlatParameter& flat(const StateTensor& tensor) const;
  /// The fp32 values that the optimizer updates: the master weights; where parameters are fp32, the
  /// part of them that belongs to this rank's optimizer. Without data if they are on disk.
  TensorView master(const FlatId& id) const;
  /// The parameters' stretches in a tensor, in order; padding belongs to none.
  std::vector<StatePiece> pieces(const StateTensor& tensor) const;

  /// Elements [first, first + values.size()) of the unit's flat parameter (or blocks of it, as in
  /// StateTensor::range), as fp32. This rank must have them, else Error{kInvalidArgument}. Each
  /// blocks until it is done.
  void read(std::string_view name, std::int64_t first, std::span<float> values,
            Stream& stream) const;
  void write(std::string_view name, std::int64_t first, std::span<const float> values,
             Stream& stream);

  /// Writes a tensor whose elements are bytes: a quantised flat parameter, or codes.
  void write_bytes(std::string_view name, std::int64_t first, std::span<const std::byte> bytes,
                   Stream& stream);
  /// Writes the bytes of a whole parameter, as many as quantized_sizes() says.
  using ProduceBytes = std::function<void(const ParameterSpec&, std::span<std::byte> bytes)>;
  /// Overwrites what this rank has of a quantised flat parameter. Asks for each parameter of which
  /// it has a part. Blocks.
  void write_quantized(const StateTensor& tensor, const ProduceBytes& produce, Stream& stream);

  /// Parameters by (seed, name, element), everything else zero. Blocks until it is done; no task
  /// may be on the stream.
  void initialize(std::uint64_t seed, Stream& stream);
  /// Overwrites the parameters and master weights, this rank its own part. `values` is asked for
  /// every parameter, perhaps repeatedly. Throws Error{kInvalidArgument} if a size does not match.
  void set_parameters(const ParameterValues& values, Stream& stream);

 private:
  using ProduceChunk = std::function<void(const ParameterSpec&, const Range& elements, TensorView)>;
  void write_parameters(const ProduceChunk& produce, Stream& stream);
  void quantize_parameters(const ReadParameter& read, Stream& stream);
  void fill_zero(const StateTensor& tensor, Stream& stream);
  std::int64_t bytes_to_initialize() const;
  TensorView part(const StateTensor& tensor, const Range& range) const;
  void clear(Stream& stream);
  void produce_on_disk(const StateTensor& tensor, const ProduceChunk& produce, Stream& stream);
  void write_to_disk(const StateTensor& tensor, std::int64_t first, std::span<const float> values,
                     Stream& stream);
  void read_from_disk(const StateTensor& tensor, std::int64_t first, std::span<float> values,
                      Stream& stream) const;

  const ModelLayout& layout_;
  StateOptions options_;
  ShardNesting nesting_;
  int rank_;
  Device& device_;
  const KernelTable& kernels_;
  std::vector<StateTensor> tensors_;
  std::vector<Tensor> storage_;
  std::unique_ptr<DiskStore> disk_;
  HostWork* const work_;
};

}  // namespace tessera
