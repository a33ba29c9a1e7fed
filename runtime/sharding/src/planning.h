#pragma once

#include <vector>

#include "residency.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/plan.h"
#include "tessera/sharding/schedule.h"

// The parts of plan(), in the order of [Note: planning] in plan.cpp.
namespace tessera {

/// A pass of the compute lane, before slots and waits are known.
struct Compute {
  const Operation* pass;
  int layer;
  int micro_step;
};

/// Where a unit's gradient is written, kept and sent. Gradients travel in the reduce dtype; their
/// sums are kept in fp32, and travel in fp32 where a sum must: from the rank that took it to
/// others. So a micro-step's gradient is rounded once, by backward, whether it is sent or not, and
/// all strategies add up the same numbers. Only sums of several micro-steps that are taken before
/// the reduction are rounded again, as they leave.
struct GradientRoute {
  GradientRoute(const Schedule& schedule, const PlanOptions& options);

  bool every;    ///< reduced in every micro-step, else only in the last one
  bool adds_up;  ///< micro-steps are added up before they are sent
  bool by_rank;  ///< ReductionOrder::kRank
  DType reduce_dtype;
  int micro_steps;
  AxisSet all_axes;
  AxisSet optimizer_axes;
  AxisSet buffer_axes;  ///< along which the fp32 gradient buffers are cut
  AxisSet sent_axes;    ///< over which slots are reduced: all at once, or the first of two levels

  /// True if backward writes the gradients of `micro_step` to slots; else to the gradient buffers.
  bool writes_to_slots(int micro_step) const {
    return every || micro_step > 0 || reduce_dtype != DType::kFloat32;
  }
  /// True if what is reduced in `micro_step` is sent from slots; else from the gradient buffers.
  bool sends_from_slots(int micro_step) const {
    return every ||
           (micro_step == micro_steps - 1 && !all_axes.empty() && reduce_dtype != DType::kFloat32);
  }
};

/// When each unit's parameters are in a slot, in order of issue; those that are unsharded and on
/// the device never are. `slots` are the sizes of the slots.
std::vector<Residency> plan_parameters(const Schedule& schedule, const PlanOptions& options,
                                       const std::vector<Compute>& computes,
                                       std::vector<std::int64_t>& slots);

/// First letter of the names of slots for shards that come from the host.
inline constexpr char kShardSlot = 's';

/// The sizes of these slots.
std::vector<std::int64_t> plan_shard_slots(const Schedule& schedule, const PlanOptions& options);

/// When each unit's gradient is being written and reduced, in order of first write; `slot` is -1
/// where it goes to the unit's gradient buffer.
std::vector<Residency> plan_gradients(const Schedule& schedule, const PlanOptions& options,
                                      const GradientRoute& route,
                                      const std::vector<Compute>& computes,
                                      std::vector<std::int64_t>& slots);

/// Appends the actions of all lanes in issue order, each with its waits within the step.
void emit_actions(Schedule& schedule, const PlanOptions& options, const GradientRoute& route,
                  const std::vector<Compute>& computes, const std::vector<Residency>& parameters,
                  const std::vector<Residency>& gradients);

/// Adds the waits that conflicts over buffers demand: for actions of the same step or of the
/// previous one.
void add_waits(Schedule& schedule);

}  // namespace tessera
