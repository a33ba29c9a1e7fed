#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/tape.h"
#include "tessera/core/dtype.h"
#include "tessera/core/memory.h"
#include "tessera/core/mesh.h"
#include "tessera/sharding/placement.h"

namespace tessera {

struct Operation;

/// A logical stream of the schedule. Which lane an action runs on is the planner's choice.
enum class Lane : std::uint8_t {
  kCompute,
  kGather,
  kReduce,
  kOptimizer,
  kCopyOut,
  kCopyIn,
  kDiskIn,
  kDiskOut
};
inline constexpr int kLanes = 8;
inline constexpr std::array<Lane, kLanes> kAllLanes{Lane::kCompute,   Lane::kGather,  Lane::kReduce,
                                                    Lane::kOptimizer, Lane::kCopyOut, Lane::kCopyIn,
                                                    Lane::kDiskIn,    Lane::kDiskOut};
std::string_view to_string(Lane lane);
constexpr bool is_communication(Lane lane) {
  return lane == Lane::kGather || lane == Lane::kReduce;
}
/// To and from the disk.
constexpr bool is_of_disk(Lane lane) { return lane == Lane::kDiskIn || lane == Lane::kDiskOut; }
/// The same, and to and from the host.
constexpr bool is_copying(Lane lane) {
  return lane == Lane::kCopyOut || lane == Lane::kCopyIn || is_of_disk(lane);
}

/// The meaning of a buffer's elements.
enum class Role : std::uint8_t {
  kParameter,   ///< a unit's trainable flat parameter; in a slot: all of the unit's that are
                ///< gathered
  kFrozen,      ///< a unit's frozen flat parameter
  kQuantized,   ///< a unit's quantised flat parameter, in bytes
  kDecoded,     ///< the same as layers read it: in slots alone
  kMaster,      ///< fp32 master weights of a unit's trainable parameters
  kOptimizer,   ///< a tensor that the optimizer keeps for each of them
  kGradient,    ///< a unit's gradient
  kScalars,     ///< a few numbers that concern the step as a whole
  kActivation,  ///< what a layer's forward leaves: its output and what backward needs
  kActivationGradient,  ///< the gradient of a layer's output
  kBatch,               ///< samples: inputs and targets
};
std::string_view to_string(Role role);

/// What a buffer is to a step.
enum class BufferKind : std::uint8_t {
  kState,       ///< a tensor of a unit's training state
  kGradient,    ///< of a unit: what its micro-steps add up to
  kCopy,        ///< of a unit's parameter or gradient, on the host
  kSnapshot,    ///< of a unit's state as it is before the step, on the host, for a checkpoint
  kInput,       ///< of a layer, on the host: what it keeps for its backward
  kActivation,  ///< of a layer and micro-step: what its forward leaves
  kActivationGradient,  ///< the gradient of that
  kBatch,               ///< of a micro-step: there before the step's first action, and stays
  kTokens,              ///< scalar: how many targets count
  kLoss,                ///< scalar: exact sum of the losses
  kNorm,                ///< scalar: exact sum of squared gradients
  kResults,             ///< scalars: mean loss, norm, clip factor
  // Slots: entries of a ring, which one unit has after the other.
  kWholeSlot,    ///< all that a unit has of one role, as passes through layers read or write it
  kShardSlot,    ///< this rank's part of parameters, from the host, to be gathered
  kStagingSlot,  ///< the same, on the host, from disk
  kUpdateSlot,   ///< updated parameters that are gathered on their way back to the host or to disk
  kSumSlot,      ///< reduced gradients of units whose gradients are on the host
  kStateSlot,    ///< on the host: a tensor of state that is on disk, while it is updated
};
inline constexpr std::array kAllBufferKinds{BufferKind::kState,
                                            BufferKind::kGradient,
                                            BufferKind::kCopy,
                                            BufferKind::kSnapshot,
                                            BufferKind::kInput,
                                            BufferKind::kActivation,
                                            BufferKind::kActivationGradient,
                                            BufferKind::kBatch,
                                            BufferKind::kTokens,
                                            BufferKind::kLoss,
                                            BufferKind::kNorm,
                                            BufferKind::kResults,
                                            BufferKind::kWholeSlot,
                                            BufferKind::kShardSlot,
                                            BufferKind::kStagingSlot,
                                            BufferKind::kUpdateSlot,
                                            BufferKind::kSumSlot,
                                            BufferKind::kStateSlot};
std::string_view to_string(BufferKind kind);

/// Memory of one rank that actions read and write.
struct ScheduleBuffer {
  std::string name;  ///< "h.3.parameter", "p0", "g1", "loss", ...: for people
  BufferKind kind = BufferKind::kState;
  Role role = Role::kScalars;
  std::string tensor{};  ///< of an optimizer's tensor: which, as in OptimizerTensor
  int unit = -1;         ///< whose it is; -1 of slots, scalars, inputs and activations
  int layer = -1;        ///< of inputs and activations: whose it is
  int micro_step = -1;   ///< of activations and batches
  DType format = DType::kFloat32;
  std::int64_t block = 1;   ///< elements of a unit's flat parameter that it has one element for
  AxisSet sharded{};        ///< axes along which the unit is sharded: the rank has one shard
  std::int64_t numel = 0;   ///< on one rank; 0 of activations, whose memory comes and goes, and of
                            ///< batches, whose size is the data's
  bool persistent = false;  ///< kept from step to step
  Tier tier = Tier::kDevice;
  bool operator==(const ScheduleBuffer&) const = default;

  bool is_slot() const { return kind >= BufferKind::kWholeSlot; }
  /// True of what a layer leaves on the device, or of its gradient.
  bool is_activation() const {
    return kind == BufferKind::kActivation || kind == BufferKind::kActivationGradient;
  }
  /// Whether parts of a unit lie in this slot as in a buffer of the unit's own; in others they lie
  /// at the beginning.
  bool keeps_places() const {
    return kind == BufferKind::kSumSlot || kind == BufferKind::kUpdateSlot;
  }
  /// True of a slot on parameters' way to layers.
  bool holds_for_layers() const {
    return (role == Role::kParameter || role == Role::kQuantized) &&
           (kind == BufferKind::kWholeSlot || kind == BufferKind::kShardSlot ||
            kind == BufferKind::kStagingSlot);
  }
  /// True of one of these for all parameters of a unit that slots hold, trainable ones, then frozen
  /// ones: but for quantised ones.
  bool holds_gathered() const { return holds_for_layers() && role == Role::kParameter; }
  /// Whether both are for the same numbers of a unit.
  bool is_same_tensor(const ScheduleBuffer& other) const {
    return unit == other.unit && role == other.role && tensor == other.tensor;
  }
};

/// An action's use of a buffer: which buffer, and what it holds then.
struct Operand {
  int buffer = 0;     ///< index, see Schedule::buffers
  int unit = -1;      ///< whose content; -1 of scalars, activations and batches
  AxisSet sharded{};  ///< axes along which the content is sharded
  bool adds = false;  ///< of a write: added to what the buffer holds
  bool operator==(const Operand&) const = default;
};

/// One element of a schedule: an operation on buffers.
struct Action {
  const Operation* operation = nullptr;
  Lane lane = Lane::kCompute;
  std::vector<Operand> reads{};
  std::vector<Operand> writes{};
  AxisSet axes{};            ///< of collectives: the ranks that differ along these meet
  int layer = -1;            ///< of passes through a layer
  int micro_step = -1;       ///< the same
  std::vector<int> waits{};  ///< earlier actions of other lanes that must have finished
  /// The same, of the step before: actions of other lanes.
  std::vector<int> previous_waits{};
  bool operator==(const Action&) const = default;
};

/// What a layer touches: units, by index, and the batch.
struct ScheduleLayer {
  std::string name;
  std::vector<int> forward_reads;   ///< parameters read by forward
  std::vector<int> backward_reads;  ///< parameters read by backward (recomputation included)
  std::vector<int> gradients;       ///< gradients written by backward
  bool reads_batch = false;         ///< its passes read the batch of their micro-step
  bool operator==(const ScheduleLayer&) const = default;
};

/// Tensors of a unit to whose gradients the same layers contribute.
struct GradientPart {
  std::string name;  ///< of its first tensor
  int tensors = 1;
  std::vector<int> layers;  ///< in order of backward
  bool operator==(const GradientPart&) const = default;
};

struct ScheduleUnit {
  std::string name;
  std::int64_t trainable_numel = 0;  ///< padded
  std::int64_t frozen_numel = 0;     ///< padded
  std::vector<GradientPart> parts{};
  std::int64_t quantized_bytes = 0;  ///< padded
  std::int64_t decoded_numel = 0;    ///< that they stand for
  bool operator==(const ScheduleUnit&) const = default;
};

/// The effect of a schedule on the training state.
enum class Purpose : std::uint8_t {
  kTrain,     ///< one optimizer step: every trainable tensor ends one version on
  kEvaluate,  ///< forward passes: the state stays as it is
};
std::string_view to_string(Purpose purpose);

/// One step as a value: what every rank does, in the order in which the host issues it. Actions of
/// one lane run in this order, and between lanes only waits order. Nothing else does from one step
/// to the next: the next may begin while this one's last actions run. The same schedule serves
/// every rank, so all ranks issue the same collectives in the same order.
struct Schedule {
  Purpose purpose = Purpose::kTrain;
  Mesh mesh;
  Placement placement;  ///< without axes of size 1; fixes the order in which axes shard
  DType parameter_dtype = DType::kFloat32;  ///< compute and all-gather
  DType reduce_dtype = DType::kFloat32;     ///< in which passes leave gradients, and send them
  int micro_steps = 1;
  Recompute recompute = Recompute::kNone;
  std::vector<ScheduleUnit> units;
  std::vector<ScheduleLayer> layers;
  int first_backward_layer = 0;  ///< layers before it have nothing to train
  std::vector<ScheduleBuffer> buffers;
  std::vector<Action> actions;

  bool operator==(const Schedule&) const = default;

  /// Whether a layer's input is the output of the one before; the first one's is the batch.
  static bool takes_activation(int layer) { return layer > 0; }
  /// Whether all that a layer's forward keeps for backward is its input, for recomputation. The
  /// batch stays anyway.
  bool keeps_input(int layer) const;
  /// Index of the buffer on the host for what `layer` keeps; -1: none.
  int input_on_host(int layer) const;
  const ScheduleBuffer& buffer(const Operand& operand) const {
    return buffers[static_cast<std::size_t>(operand.buffer)];
  }
  bool is_of_kind(const Operand& operand, BufferKind kind) const {
    return buffer(operand).kind == kind;
  }
  Role role(int buffer) const { return buffers[static_cast<std::size_t>(buffer)].role; }
  /// "h.3.gradient", "p0", "x.h.3.m1" (activation), "d.h.3.m1" (its gradient), "batch.m1"; "?7" if
  /// there is none.
  std::string name_of(int buffer) const;
  /// Elements of a unit's flat parameter that a buffer of `role` holds, before sharding.
  std::int64_t unit_numel(int unit, Role role) const;
  /// Elements that `buffer` has for a unit, before sharding: fewer where they are of blocks.
  std::int64_t unit_numel(int unit, const ScheduleBuffer& buffer) const {
    return unit_numel(unit, buffer.role) / (buffer.block > 1 ? buffer.block : 1);
  }
  /// Index of the first buffer on the device with this role and unit; -1: none.
  int find(Role role, int unit) const;
  /// Where a unit's flat parameter of this role, kParameter, kFrozen or kQuantized, is from step to
  /// step. If that is not the device, layers read it from slots only.
  Tier home_of(int unit, Role flat) const;
  /// Whether layers read a unit's flat parameter of this role, kParameter or kFrozen, from slots:
  /// it is sharded, or not on the device. False if the unit has none.
  bool is_gathered(int unit, Role flat) const;
  /// Elements of all that the unit has in slots.
  std::int64_t gathered_numel(int unit) const;
  /// Elements that a buffer has of this unit, before sharding.
  std::int64_t numel_in(const ScheduleBuffer& buffer, int unit) const;
  /// Whether the optimizer updates a unit there: its state is there, or on disk.
  bool updates_on_host(int unit) const;
  /// The state tensor that a snapshot or a copy is of. There must be one.
  const ScheduleBuffer& state_of(const ScheduleBuffer& copy) const;
  /// Index of the first buffer of this kind; -1: none.
  int find(BufferKind kind) const;
  /// The first operand of this kind; null: none.
  const Operand* find(const std::vector<Operand>& operands, BufferKind kind) const;
  /// Index of the buffer with this name; -1: none. For people and tests.
  int find(std::string_view name) const;
};

/// "fp32", and "fp32/256" of a buffer with one element for 256.
std::string format_of(const ScheduleBuffer& buffer);
/// A text with one line per unit, layer, buffer and action; `parse_schedule` is its exact inverse.
std::string to_string(const Schedule& schedule);
/// "reduce-scatter over shard g1=h.3 -> h.3.gradient" and the like: one action in words. A '*'
/// marks what is written and read.
std::string describe(const Schedule& schedule, const Action& action);
/// "h.3.gradient", "+g1=h.3", "h.3.gradient/shard": as an action's line names an operand.
std::string describe(const Schedule& schedule, const Operand& operand);
/// Throws Error{kConfig} that names the line.
Schedule parse_schedule(std::string_view text);

}  // namespace tessera
