#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/tape.h"
#include "tessera/core/dtype.h"
#include "tessera/core/mesh.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/placement.h"

namespace tessera {

/// A logical stream of the schedule.
enum class Lane : std::uint8_t { kCompute, kGather, kReduce };
inline constexpr int kLanes = 3;
inline constexpr std::array<Lane, kLanes> kAllLanes{Lane::kCompute, Lane::kGather, Lane::kReduce};

enum class ActionKind : std::uint8_t {
  kCountItems,       ///< reduce: sum over all ranks of how many losses count; scales the loss
  kUnshard,          ///< gather: all-gather a unit's parameters over `axes` into a slot
  kForward,          ///< compute: a layer's forward
  kLoss,             ///< compute: the last layer's forward and backward in one
  kBackward,         ///< compute: a layer's backward (with its forward again, if recomputed)
  kReshard,          ///< compute: the slot of a unit's parameters is free again
  kAccumulate,       ///< compute: gradient buffer += gradient slot (micro-step 0: =)
  kRound,            ///< compute: gradient slot = gradient buffer, rounded to be sent
  kReduceScatter,    ///< reduce: sum over `axes`, this rank's part into the gradient buffer
  kAllReduce,        ///< reduce: sum over `axes` in the gradient buffer
  kGatherGradient,   ///< reduce: all-gather over `axes` inside the gradient buffer
  kSquares,          ///< reduce: this rank's share of a unit's squared gradient norm
  kExchange,         ///< reduce: losses and squared norms of all ranks; fixes the clip factor
  kUpdate,           ///< compute: the optimizer on a unit's shard
  kGatherParameter,  ///< gather: all-gather updated parameters over `axes` in the parameter buffer
};
inline constexpr int kActionKinds = 15;

/// "unshard", "forward", ...
std::string_view to_string(ActionKind kind);
std::string_view to_string(Lane lane);
/// The lane that actions of this kind run on.
Lane lane_of(ActionKind kind);
/// True if ranks meet in actions of this kind: all must issue them in the same order.
bool is_collective(ActionKind kind);

/// One element of a schedule. Fields that a kind does not use keep their defaults.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int unit = -1;        ///< of kUnshard, kReshard, gradient and optimizer actions
  int layer = -1;       ///< of kForward, kLoss, kBackward
  int micro_step = -1;  ///< of all but kCountItems, kSquares, kExchange, kUpdate, kGatherParameter
  /// Parameter slot (kUnshard, kReshard); gradient slot (kAccumulate, kRound, kReduceScatter; -1:
  /// the sum is taken in place in the gradient buffer).
  int slot = -1;
  AxisSet axes{};            ///< of collectives
  bool accumulate = false;   ///< kReduceScatter: add to the gradient buffer
  std::vector<int> waits{};  ///< earlier actions of other lanes that must have finished

  Lane lane() const { return lane_of(kind); }
  bool operator==(const Action&) const = default;
};

/// What a layer touches, by unit index.
struct ScheduleLayer {
  std::string name;
  std::vector<int> forward_reads;   ///< parameters read by forward
  std::vector<int> backward_reads;  ///< parameters read by backward (recomputation included)
  std::vector<int> gradients;       ///< gradients written by backward
  bool operator==(const ScheduleLayer&) const = default;
};

struct ScheduleUnit {
  std::string name;
  std::int64_t trainable_numel = 0;  ///< padded
  std::int64_t frozen_numel = 0;     ///< padded
  bool operator==(const ScheduleUnit&) const = default;
};

/// Where the gradient of a unit goes while a micro-step's backward writes it: a slot, or -1 for the
/// unit's gradient buffer itself.
struct GradientTarget {
  int unit = 0;
  int micro_step = 0;
  int slot = -1;
  bool operator==(const GradientTarget&) const = default;
};

/// One training step as a value: what every rank does, in the order in which the host issues it.
/// Actions of one lane run in this order; between lanes only `waits` orders. The same schedule
/// serves every rank, so all ranks issue the same collectives in the same order.
///
/// Gradients travel in `reduce_dtype`; their sums are kept in fp32, and travel in fp32 where a sum
/// must: from the rank that took it to others. So a micro-step's gradient is rounded once, by
/// backward, whether it is sent or not, and all strategies add up the same numbers. Only sums of
/// several micro-steps that are taken before the reduction are rounded again, as they leave.
struct Schedule {
  Mesh mesh;
  Placement placement;  ///< without axes of size 1
  ReductionOrder reduction_order = ReductionOrder::kRank;
  DType parameter_dtype = DType::kFloat32;  ///< compute and all-gather
  DType reduce_dtype = DType::kFloat32;     ///< gradients as written to slots and as sent
  int micro_steps = 1;
  bool accumulate_unsharded = false;  ///< no_sync: gradients stay whole until the last micro-step
  Recompute recompute = Recompute::kNone;
  std::vector<ScheduleUnit> units;
  std::vector<ScheduleLayer> layers;
  int first_backward_layer = 0;               ///< layers before it have nothing to train
  std::vector<std::int64_t> parameter_slots;  ///< numel of each
  std::vector<std::int64_t> gradient_slots;   ///< numel of each
  std::vector<GradientTarget> gradient_targets;
  std::vector<Action> actions;

  bool operator==(const Schedule&) const = default;

  /// True if gradients are reduced in every micro-step, else only in the last one.
  bool reduces_every_micro_step() const {
    return !placement.gradient.empty() && !accumulate_unsharded;
  }
  /// Axes along which a unit's gradient buffer is cut: what this rank keeps of it between
  /// micro-steps. Gradient buffers are fp32.
  AxisSet gradient_buffer_axes() const;
  /// True if backward writes the gradients of `micro_step` to slots; else to the gradient buffers.
  bool writes_to_slots(int micro_step) const {
    return reduces_every_micro_step() || micro_step > 0 || reduce_dtype != DType::kFloat32;
  }
  /// True if what is reduced in `micro_step` is sent from slots; else from the gradient buffers.
  bool sends_from_slots(int micro_step) const {
    return reduces_every_micro_step() || (micro_step == micro_steps - 1 && mesh.world_size() > 1 &&
                                          reduce_dtype != DType::kFloat32);
  }
  /// The slot that `unit`'s gradient is written to in `micro_step`; -1: its gradient buffer.
  int gradient_slot(int unit, int micro_step) const;
};

/// A text with one line per unit, layer, slot and action; `parse_schedule` is its exact inverse.
std::string to_string(const Schedule& schedule);
/// "reduce-scatter h.3 over shard, slot g1 -> gradient" and the like: one action in words.
std::string describe(const Schedule& schedule, const Action& action);
/// Throws Error{kConfig} that names the line.
Schedule parse_schedule(std::string_view text);

}  // namespace tessera
