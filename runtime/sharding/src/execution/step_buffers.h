#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"
#include "tessera/sharding/schedule.h"
#include "tessera/sharding/training_state.h"

namespace tessera {

/// Memory for the buffers of schedules that run over one state in turn: those of the same name are
/// one, as large as the largest. What persists is the state's.
class BufferPool {
 public:
  BufferPool(std::span<const Schedule* const> schedules, Memory& memory, Stream& stream);
  TensorView at(const std::string& name) const { return buffers_.at(name).view(); }

 private:
  std::map<std::string, Tensor> buffers_;
};

/// Memory for a schedule's snapshot, on the host.
class SnapshotBuffers {
 public:
  SnapshotBuffers(const Schedule& schedule, Device& device);
  ~SnapshotBuffers();
  SnapshotBuffers(const SnapshotBuffers&) = delete;
  SnapshotBuffers& operator=(const SnapshotBuffers&) = delete;
  /// (numel) of the copy of this state tensor.
  TensorView at(const std::string& name) const { return views_.at(name); }

 private:
  Device& device_;
  std::size_t bytes_;
  void* memory_;
  std::map<std::string, TensorView> views_;
};

/// The bytes of a state tensor on disk.
struct DiskPlace {
  DiskStore* store = nullptr;  ///< null: the state is simulated
  std::size_t extent = 0;
  std::int64_t offset = 0;  ///< in the extent
};

/// Where one schedule's operands lie in the memory of one rank. Scalars are StepExchange's.
class StepBuffers {
 public:
  /// Throws Error{kInvalidArgument} if the schedule was planned for another state.
  StepBuffers(const Schedule& schedule, const TrainingState& state, const BufferPool& pool);

  /// The part of the buffer that an operand names. Of several flat parameters, the first.
  TensorView view(const Operand& operand) const;
  /// The part of one of the flat parameters that it names, which lie one after the other in a slot.
  TensorView view(const Operand& operand, int flat) const;
  /// The place of a buffer on disk, whose view has no data.
  DiskPlace disk_place(const Operand& operand) const;
  /// Where that part begins in the unit's flat parameter.
  std::int64_t first_element(const Operand& operand) const;
  /// All of a buffer; null for scalars and activations.
  TensorView whole(int buffer) const { return bases_[static_cast<std::size_t>(buffer)]; }
  /// Gives the buffers of the snapshot their memory.
  void take(const SnapshotBuffers& snapshot);

 private:
  const Schedule& schedule_;
  ShardNesting nesting_;
  int rank_;
  std::vector<TensorView> bases_;
  DiskStore* disk_;
  std::vector<std::size_t> extents_;  ///< by buffer
};

}  // namespace tessera
