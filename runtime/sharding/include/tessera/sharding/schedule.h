#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/tape.h"
#include "tessera/core/dtype.h"
#include "tessera/core/memory.h"
#include "tessera/core/mesh.h"
#include "tessera/sharding/plan_options.h"

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
  kDiskOut,
  // Messages between pipeline ranks, each direction for itself.
  kSend,      ///< to the stage behind
  kReceive,   ///< from the stage before
  kSendBack,  ///< to the stage before
  kReceiveBack
};
inline constexpr int kLanes = 12;
inline constexpr std::array<Lane, kLanes> kAllLanes{
    Lane::kCompute, Lane::kGather,  Lane::kReduce,   Lane::kOptimizer,
    Lane::kCopyOut, Lane::kCopyIn,  Lane::kDiskIn,   Lane::kDiskOut,
    Lane::kSend,    Lane::kReceive, Lane::kSendBack, Lane::kReceiveBack};
std::string_view to_string(Lane lane);
constexpr bool is_communication(Lane lane) {
  return lane == Lane::kGather || lane == Lane::kReduce || lane >= Lane::kSend;
}
/// The lane on which the other pipeline rank has the same message.
constexpr Lane opposite(Lane lane) {
  switch (lane) {
    case Lane::kSend:
      return Lane::kReceive;
    case Lane::kReceive:
      return Lane::kSend;
    case Lane::kSendBack:
      return Lane::kReceiveBack;
    case Lane::kReceiveBack:
      return Lane::kSendBack;
    default:
      return lane;
  }
}
/// To and from the disk.
constexpr bool is_of_disk(Lane lane) { return lane == Lane::kDiskIn || lane == Lane::kDiskOut; }
/// True of lanes to and from the disk or the host.
constexpr bool is_copying(Lane lane) {
  return lane == Lane::kCopyOut || lane == Lane::kCopyIn || is_of_disk(lane);
}

/// The meaning of a buffer's elements.
enum class Role : std::uint8_t {
  kParameter,   ///< a unit's flat parameter as it is kept; in a slot: one or more of the unit's
  kDecoded,     ///< a quantised flat parameter as layers read it: in slots alone
  kCode,        ///< a flat parameter of matrices in E4M3: in slots alone
  kHistory,     ///< largest magnitudes of tensors in earlier steps; see HistoryTable
  kMaxima,      ///< those in this step
  kStatistics,  ///< sums and factors of a factored optimizer; see FactoredTable
  kScales,      ///< largest magnitudes of matrices, which the scales of codes are made of
  kMaster,      ///< fp32 master weights of a trainable flat parameter
  kOptimizer,   ///< a tensor that the optimizer keeps for each of them
  kGradient,    ///< a unit's gradient
  kScalars,     ///< a few numbers that concern the step as a whole
  kActivation,  ///< what a layer's forward leaves: its output and what backward needs
  kActivationGradient,  ///< the gradient of a layer's output
  kBatch,               ///< samples: inputs and targets
};
std::string_view to_string(Role role);

/// A buffer's use in a step.
enum class BufferKind : std::uint8_t {
  kState,       ///< a tensor of a unit's training state
  kGradient,    ///< of a unit: what its micro-steps add up to
  kCopy,        ///< of a unit's parameter or gradient, on the host
  kSnapshot,    ///< of a unit's state as it is before the step, on the host, for a checkpoint
  kInput,       ///< of a layer, on the host: what it keeps for its backward in a micro-step
  kActivation,  ///< of a layer and micro-step: what its forward leaves
  kActivationGradient,  ///< the gradient of that
  kBatch,               ///< of a micro-step: there before the step's first action, and stays
  kScales,              ///< of a group of units; see ScaleTable
  kHistory,             ///< of the layers; see HistoryTable
  kMaxima,              ///< of a step, for these
  kSquares,             ///< sums of squared gradients; see FactoredTable
  kFactors,             ///< of updates; see FactoredTable
  kUpdateSquares,       ///< sums of squared updates; see FactoredTable
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
  kSendSlot,     ///< a message to another pipeline rank
  kReceiveSlot,  ///< a message from another pipeline rank
};
inline constexpr std::array kAllBufferKinds{BufferKind::kState,
                                            BufferKind::kGradient,
                                            BufferKind::kCopy,
                                            BufferKind::kSnapshot,
                                            BufferKind::kInput,
                                            BufferKind::kActivation,
                                            BufferKind::kActivationGradient,
                                            BufferKind::kBatch,
                                            BufferKind::kScales,
                                            BufferKind::kHistory,
                                            BufferKind::kMaxima,
                                            BufferKind::kSquares,
                                            BufferKind::kFactors,
                                            BufferKind::kUpdateSquares,
                                            BufferKind::kTokens,
                                            BufferKind::kLoss,
                                            BufferKind::kNorm,
                                            BufferKind::kResults,
                                            BufferKind::kWholeSlot,
                                            BufferKind::kShardSlot,
                                            BufferKind::kStagingSlot,
                                            BufferKind::kUpdateSlot,
                                            BufferKind::kSumSlot,
                                            BufferKind::kStateSlot,
                                            BufferKind::kSendSlot,
                                            BufferKind::kReceiveSlot};
std::string_view to_string(BufferKind kind);

/// Memory of one rank that actions read and write.
struct ScheduleBuffer {
  std::string name;  ///< "h.3.parameter", "p0", "g1", "loss", ...: for people
  BufferKind kind = BufferKind::kState;
  Role role = Role::kScalars;
  std::string tensor{};  ///< of an optimizer's tensor: which, as in OptimizerTensor
  int unit = -1;         ///< whose it is; -1 of slots, scalars, inputs and activations
  int flat = 0;          ///< of a unit's: the flat parameter that it is of, by index
  int layer = -1;        ///< of inputs, activations and messages of them: whose it is
  int micro_step = -1;   ///< of activations and batches
  DType format = DType::kFloat32;
  std::int64_t block = 1;   ///< elements of a unit's flat parameter that it has one element for;
                            ///< kFactoredBlock: one for each row and column of its matrices
  AxisSet sharded{};        ///< axes along which the unit is sharded: the rank has one shard
  std::int64_t numel = 0;   ///< on one rank; 0 of activations, whose memory comes and goes, and of
                            ///< batches, whose size is the data's
  bool persistent = false;  ///< kept from step to step
  Tier tier = Tier::kDevice;
  bool operator==(const ScheduleBuffer&) const = default;

  bool is_slot() const { return kind >= BufferKind::kWholeSlot; }
  bool is_factored() const { return block == kFactoredBlock; }
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
    return (role == Role::kParameter || role == Role::kCode) &&
           (kind == BufferKind::kWholeSlot || kind == BufferKind::kShardSlot ||
            kind == BufferKind::kStagingSlot);
  }
  /// Whether both are for the same numbers of a unit.
  bool is_same_tensor(const ScheduleBuffer& other) const {
    return unit == other.unit && flat == other.flat && role == other.role && tensor == other.tensor;
  }
};

/// Flat parameters of a unit, by index.
class FlatSet {
 public:
  static constexpr int kMost = 32;
  constexpr FlatSet() = default;
  constexpr FlatSet(std::initializer_list<int> flats) {
    for (const int flat : flats) insert(flat);
  }
  constexpr void insert(int flat) { bits_ |= std::uint32_t{1} << static_cast<unsigned>(flat); }
  constexpr bool contains(int flat) const {
    return flat >= 0 && flat < kMost && (bits_ >> static_cast<unsigned>(flat) & 1U) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr int size() const { return std::popcount(bits_); }
  /// The first one; -1: none.
  constexpr int front() const { return empty() ? -1 : std::countr_zero(bits_); }
  constexpr FlatSet operator|(FlatSet other) const { return FlatSet(bits_ | other.bits_); }
  constexpr bool overlaps(FlatSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool operator==(const FlatSet&) const = default;
  constexpr auto operator<=>(const FlatSet&) const = default;

 private:
  constexpr explicit FlatSet(std::uint32_t bits) : bits_(bits) {}
  std::uint32_t bits_ = 0;
};

/// An action's use of a buffer: which buffer, and what it holds then.
struct Operand {
  int buffer = 0;     ///< index, see Schedule::buffers
  int unit = -1;      ///< whose content; -1 of scalars, activations and batches
  AxisSet sharded{};  ///< axes along which the content is sharded
  bool adds = false;  ///< of a write: added to what the buffer holds
  FlatSet flats{};    ///< of the unit: which; empty: those that Schedule::flats_in() says
  bool operator==(const Operand&) const = default;
};

/// One element of a schedule: an operation on buffers.
struct Action {
  const Operation* operation = nullptr;
  Lane lane = Lane::kCompute;
  std::vector<Operand> reads{};
  std::vector<Operand> writes{};
  AxisSet axes{};            ///< of collectives: the ranks that differ along these meet
  int layer = -1;            ///< of passes through a layer; of messages: whose output, or gradient
                             ///< of the output, is sent; -1: it is of a unit
  int micro_step = -1;       ///< the same
  int peer = -1;             ///< of messages: the other pipeline rank
  std::vector<int> waits{};  ///< earlier actions of other lanes that must have finished
  /// Actions of other lanes, of the step before, that must have finished.
  std::vector<int> previous_waits{};
  bool operator==(const Action&) const = default;
};

/// A flat parameter: which unit's, and which of them, by index.
struct FlatId {
  int unit = 0;
  int flat = 0;
  auto operator<=>(const FlatId&) const = default;
};

/// A layer and what it touches: units, by index, and the batch.
struct ScheduleLayer {
  std::string name;
  std::vector<int> forward_reads;    ///< parameters read by forward
  std::vector<int> backward_reads;   ///< parameters read by backward (recomputation included)
  std::vector<FlatId> gradients;     ///< gradients written by backward
  bool reads_batch = false;          ///< its passes read the batch of their micro-step
  bool splits_backward = false;      ///< see StepPolicy::split_backward: its backward is two passes
  std::int64_t counted_classes = 0;  ///< see Layer::counted_classes
  int fp8_histories = 0;             ///< see LayerLayout
  bool operator==(const ScheduleLayer&) const = default;
};

/// Tensors of a unit to whose gradients the same layers contribute.
struct GradientPart {
  std::string name;  ///< of its first tensor
  int tensors = 1;
  std::vector<int> layers;  ///< in order of backward
  bool operator==(const GradientPart&) const = default;
};

/// A flat parameter of a unit; see FlatParameter.
struct ScheduleFlat {
  std::string name = "parameter";
  bool trainable = true;
  DType format = DType::kFloat32;  ///< in which it is kept and gathered; of a quantised one bytes
  std::int64_t numel = 0;          ///< padded
  std::int64_t decoded_numel = 0;  ///< of a quantised one: elements that layers read
  int matrices = 0;                ///< that layers can read in E4M3; 0: they read the elements
  /// See FactoredCounts; 0 unless a factored optimizer trains it.
  std::int64_t factored_numbers = 0;
  int factored_matrices = 0;
  std::vector<GradientPart> parts{};  ///< of a trainable one

  bool is_quantized() const { return decoded_numel > 0; }
  bool has_codes() const { return matrices > 0; }
  bool operator==(const ScheduleFlat&) const = default;
};

struct ScheduleUnit {
  std::string name;
  std::vector<ScheduleFlat> flats{};
  int rank = 0;      ///< the pipeline rank that keeps it
  int mirrors = -1;  ///< see Unit::mirrors
  bool operator==(const ScheduleUnit&) const = default;

  /// Elements of what is trained, or of what is not.
  std::int64_t numel(bool trainable) const;
};

/// Layers [begin, end).
struct LayerRange {
  int begin = 0;
  int end = 0;
};

/// One step as a value: what every rank does, in the order in which the host issues it. Actions of
/// one lane run in this order, and between lanes only waits order. Nothing else does from one step
/// to the next: the next may begin while this one's last actions run. The same schedule serves
/// every rank of a pipeline rank, so these issue the same collectives in the same order. Units and
/// layers are those of the whole model, by the same numbers for every pipeline rank.
///
/// A schedule holds the options that it was planned with: passes of planning read nothing else. Of
/// the placement, axes of size 1 are left out; it fixes the order in which axes shard.
struct Schedule : PlanOptions {
  std::vector<ScheduleUnit> units;
  std::vector<ScheduleLayer> layers;
  int first_backward_layer = 0;  ///< layers before it have nothing to train
  std::vector<ScheduleBuffer> buffers;
  std::vector<Action> actions;

  bool operator==(const Schedule&) const = default;

  /// Whether a layer's input is the output of the one before; the first one's is the batch.
  static bool takes_activation(int layer) { return layer > 0; }
  /// The last layer makes the losses.
  bool is_last(int layer) const { return layer + 1 == static_cast<int>(layers.size()); }
  /// The layers of a stage.
  LayerRange layers_of(int stage) const {
    const std::vector<int>& first = pipeline.first_layers;
    const auto s = static_cast<std::size_t>(stage);
    return {first.empty() ? 0 : first[s],
            s + 1 < first.size() ? first[s + 1] : static_cast<int>(layers.size())};
  }
  int pipeline_ranks() const { return mesh.size(Axis::kPipeline); }
  /// The pipeline rank that runs a layer.
  int rank_of(int layer) const {
    return pipeline.rank_of_stage(pipeline.stage_of(layer), pipeline_ranks());
  }
  /// Whether this pipeline rank runs a layer.
  bool is_here(int layer) const {
    return layer >= 0 && layer < static_cast<int>(layers.size()) && rank_of(layer) == pipeline.rank;
  }
  bool is_here(const ScheduleUnit& unit) const { return unit.rank == pipeline.rank; }
  /// Whether a layer's output goes to another pipeline rank.
  bool is_sent(int layer) const { return !is_last(layer) && rank_of(layer) != rank_of(layer + 1); }
  /// Whether all that a layer's forward keeps for backward is its input, for recomputation. The
  /// batch stays anyway.
  bool keeps_input(int layer) const;
  /// Index of the first buffer on the host for what `layer` keeps; -1: none.
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
  const ScheduleFlat& flat(int unit, int index) const {
    return units[static_cast<std::size_t>(unit)].flats[static_cast<std::size_t>(index)];
  }
  const ScheduleFlat& flat(const FlatId& id) const { return flat(id.unit, id.flat); }
  /// Over which axes a flat parameter is sharded from step to step.
  AxisSet axes_of(const ScheduleFlat& flat) const {
    return flat.trainable ? placement.parameter : placement.frozen_axes();
  }
  /// Flat parameters of a unit that a buffer can hold: its own flat parameter; of a slot on the way
  /// to layers all in the slot's format; of other slots the first trainable one.
  FlatSet flats_in(const ScheduleBuffer& buffer, int unit) const;
  /// Flat parameters of its unit that an operand names.
  FlatSet flats(const Operand& operand) const {
    return operand.flats.empty() ? flats_in(buffer(operand), operand.unit) : operand.flats;
  }
  /// Names `flats` in an operand, in the short form if flats_in() says the same.
  void set_flats(Operand& operand, FlatSet flats) const {
    operand.flats = flats == flats_in(buffer(operand), operand.unit) ? FlatSet() : flats;
  }
  /// Elements of a message of a layer's output, or of its gradient.
  std::int64_t message_numel(int layer) const {
    return pipeline.input_numels[static_cast<std::size_t>(pipeline.stage_of(layer + 1))];
  }
  /// Elements that a buffer has of a flat parameter, before sharding: fewer where they are of
  /// blocks.
  std::int64_t numel_in(const ScheduleBuffer& buffer, const ScheduleFlat& flat) const {
    if (buffer.is_factored()) return flat.factored_numbers;
    return (buffer.role == Role::kDecoded ? flat.decoded_numel : flat.numel) /
           (buffer.block > 1 ? buffer.block : 1);
  }
  /// Elements of a buffer that is a unit's.
  std::int64_t own_numel(const ScheduleBuffer& buffer) const {
    return numel_in(buffer, flat(buffer.unit, buffer.flat));
  }
  /// Elements of all that an operand names, before sharding.
  std::int64_t numel(const Operand& operand) const;
  /// Index of the first buffer on the device with this role, unit and flat parameter; -1: none.
  int find(Role role, int unit, int flat = 0) const;
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
