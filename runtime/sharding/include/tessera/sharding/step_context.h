#pragma once

#include "tessera/core/device.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/groups.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

class LayerRunner;
class OptimizerRunner;
class StepBuffers;
struct DiskPlace;
class StepExchange;

/// The context of an operation's handler: one rank's memory, kernels and groups, for the step that
/// runs. An operand's view is all that a handler can touch: what it does not name, it cannot reach.
class StepContext {
 public:
  StepContext(const Schedule& schedule, const StepBuffers& buffers, const KernelTable& kernels,
              const RankGroups& groups, StepExchange& exchange, LayerRunner& layers,
              Traffic& copies, OptimizerRunner& optimizer)
      : schedule_(schedule),
        buffers_(buffers),
        kernels_(kernels),
        groups_(groups),
        exchange_(exchange),
        layers_(layers),
        copies_(copies),
        optimizer_(optimizer) {}

  const Schedule& schedule() const { return schedule_; }
  /// The elements that an operand names. Not of scalars and activations.
  TensorView view(const Operand& operand) const;
  /// The view of one of the flat parameters that it names, by index.
  TensorView view(const Operand& operand, int flat) const;
  /// The place of a buffer on disk, whose view has no data.
  DiskPlace disk_place(const Operand& operand) const;
  /// Where it begins in its unit's flat parameter.
  std::int64_t first_element(const Operand& operand) const;
  const KernelTable& kernels() const { return kernels_; }
  /// The ranks that meet in an action.
  ProcessGroup& group(const Action& action) const;
  /// The two pipeline ranks of a message, in order of their number.
  ProcessGroup& pair(const Action& message) const;
  StepExchange& exchange() { return exchange_; }
  /// The bytes that copies have moved so far.
  Traffic& copies() { return copies_; }
  LayerRunner& layers() { return layers_; }
  OptimizerRunner& optimizer() { return optimizer_; }

 private:
  const Schedule& schedule_;
  const StepBuffers& buffers_;
  const KernelTable& kernels_;
  const RankGroups& groups_;
  StepExchange& exchange_;
  LayerRunner& layers_;
  Traffic& copies_;
  OptimizerRunner& optimizer_;
};

}  // namespace tessera
