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
enum class Lane : std::uint8_t { kCompute, kGather, kReduce, kOptimizer, kCopyOut, kCopyIn };
inline constexpr int kLanes = 6;
inline constexpr std::array<Lane, kLanes> kAllLanes{
    Lane::kCompute, Lane::kGather, Lane::kReduce, Lane::kOptimizer, Lane::kCopyOut, Lane::kCopyIn};
std::string_view to_string(Lane lane);
constexpr bool is_communication(Lane lane) {
  return lane == Lane::kGather || lane == Lane::kReduce;
}
/// To and from the host.
constexpr bool is_copying(Lane lane) { return lane == Lane::kCopyOut || lane == Lane::kCopyIn; }

/// The meaning of a buffer's elements.
enum class Role : std::uint8_t {
  kParameter,   ///< a unit's trainable flat parameter; in a slot: all of the unit's that are
                ///< gathered
  kFrozen,      ///< a unit's frozen flat parameter
  kMaster,      ///< fp32 master weights of a unit's trainable parameters
  kOptimizer,   ///< a tensor that the optimizer keeps for each of them
  kGradient,    ///< a unit's gradient
  kScalars,     ///< a few numbers that concern the step as a whole
  kActivation,  ///< what a layer's forward leaves: its output and what backward needs
  kActivationGradient,  ///< the gradient of a layer's output
};
std::string_view to_string(Role role);

/// Memory of one rank that actions read and write.
struct ScheduleBuffer {
  std::string name;  ///< "h.3.parameter", "p0", "g1", "loss", ...
  Role role = Role::kScalars;
  int unit = -1;  ///< whose it is; -1: a slot, which one unit has after the other, or scalars
  DType format = DType::kFloat32;
  AxisSet sharded{};        ///< axes along which the unit is sharded: the rank has one shard
  std::int64_t numel = 0;   ///< on one rank
  bool persistent = false;  ///< kept from step to step
  Tier tier = Tier::kDevice;
  bool operator==(const ScheduleBuffer&) const = default;

  /// True of a ring entry for unsharded parameters or gradients.
  bool is_slot() const { return unit < 0 && (role == Role::kParameter || role == Role::kGradient); }
  /// True of a copy of the state as it is before the step; see snapshot_name().
  bool is_snapshot() const;
};

/// An action's use of a buffer: which buffer, and what it holds then.
struct Operand {
  int buffer = 0;     ///< index, see Schedule::buffers
  int unit = -1;      ///< whose content; -1 of scalars and activations
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

/// The units that a layer touches, by index.
struct ScheduleLayer {
  std::string name;
  std::vector<int> forward_reads;   ///< parameters read by forward
  std::vector<int> backward_reads;  ///< parameters read by backward (recomputation included)
  std::vector<int> gradients;       ///< gradients written by backward
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
  /// All but activations, which have the indices that follow, in order of micro-step and layer:
  /// what forward leaves (activation()), and the gradient of that (activation_gradient()). Their
  /// memory comes and goes as the layers run.
  std::vector<ScheduleBuffer> buffers;
  std::vector<Action> actions;

  bool operator==(const Schedule&) const = default;

  int activation(int layer, int micro_step) const {
    return static_cast<int>(buffers.size()) +
           2 * (micro_step * static_cast<int>(layers.size()) + layer);
  }
  int activation_gradient(int layer, int micro_step) const {
    return activation(layer, micro_step) + 1;
  }
  /// The number of all buffers, activations included.
  int buffer_count() const { return activation(0, micro_steps); }
  bool is_activation(int buffer) const { return buffer >= static_cast<int>(buffers.size()); }
  const ScheduleBuffer& buffer(const Operand& operand) const {
    return buffers[static_cast<std::size_t>(operand.buffer)];
  }
  Role role(int buffer) const;
  /// "h.3.gradient", "p0", "x.h.3.m1" (activation), "d.h.3.m1" (its gradient); "?7" if there is
  /// none.
  std::string name_of(int buffer) const;
  /// Elements of a unit's flat parameter that a buffer of `role` holds, before sharding.
  std::int64_t unit_numel(int unit, Role role) const;
  /// Index of the first buffer on the device with this role and unit; -1: none.
  int find(Role role, int unit) const;
  /// Whether a unit's parameters are on the host, so that layers read them from slots only.
  bool reads_from_host(int unit) const;
  /// Whether layers read a unit's flat parameter of this role, kParameter or kFrozen, from slots:
  /// it is sharded, or on the host. False if the unit has none.
  bool is_gathered(int unit, Role flat) const;
  /// Elements of all that the unit has in slots.
  std::int64_t gathered_numel(int unit) const;
  /// Whether the optimizer updates a unit there.
  bool updates_on_host(int unit) const;
  /// Index of the buffer with this name (no activation); -1: none.
  int find(std::string_view name) const;
};

// Of the buffers on the host that a buffer's copies are for.
/// On its way to the host or back within a step: "h.3.gradient@host".
std::string host_copy_name(std::string_view name);
/// Kept until the next one, for a checkpoint: "h.3.master@snapshot".
std::string snapshot_name(std::string_view name);
/// The buffer that a copy is of: "h.3.master" of "h.3.master@snapshot"; itself of others.
std::string_view copied_name(std::string_view name);

// Names of the scalars' buffers.
inline constexpr std::string_view kTokensBuffer = "tokens";    ///< how many targets count
inline constexpr std::string_view kLossBuffer = "loss";        ///< exact sum of the losses
inline constexpr std::string_view kNormBuffer = "norm";        ///< exact sum of squared gradients
inline constexpr std::string_view kResultsBuffer = "results";  ///< mean loss, norm, clip factor

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
