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

/// Whether a pass leaves something for others under its layer's name: its output, or, of the last
/// layer, what a backward apart from it reads.
inline bool leaves_activation(const Schedule& schedule, const Compute& compute) {
  const bool last = compute.layer == static_cast<int>(schedule.layers.size()) - 1;
  return compute.pass->parts.forward && !compute.pass->parts.backward &&
         (!last || schedule.purpose == Purpose::kTrain);
}

/// Where a unit's gradient is written, kept and sent. Gradients travel in the reduce dtype; their
/// sums are kept in fp32, and travel in fp32 where a sum must: from the rank that took it to
/// others. So a micro-step's gradient is rounded once, by backward, whether it is sent or not, and
/// all strategies add up the same numbers. Only sums of several micro-steps that are taken before
/// the reduction are rounded again, as they leave.
struct GradientRoute {
  GradientRoute(const Schedule& schedule, const ModelLayout& layout, const PlanOptions& options);

  bool every;    ///< reduced in every micro-step, else only in the last one
  bool adds_up;  ///< micro-steps are added up before they are sent
  bool by_rank;  ///< ReductionOrder::kRank
  DType reduce_dtype;
  int micro_steps;
  std::vector<bool> on_host;  ///< by unit: its gradient, see PlanOptions::offload_gradients
  AxisSet all_axes;
  AxisSet optimizer_axes;
  AxisSet buffer_axes;  ///< along which the fp32 gradient buffers are cut
  AxisSet sent_axes;    ///< over which slots are reduced: all at once, or the first of two levels

  /// True if backward writes a unit's gradient of `micro_step` to a slot; else to the gradient
  /// buffer.
  bool writes_to_slots(int unit, int micro_step) const {
    return every || micro_step > 0 || reduce_dtype != DType::kFloat32 || is_on_host(unit);
  }
  bool is_on_host(int unit) const { return on_host[static_cast<std::size_t>(unit)]; }
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

/// The same of their quantised parameters.
std::vector<Residency> plan_quantized(const Schedule& schedule, const PlanOptions& options,
                                      const std::vector<Compute>& computes,
                                      std::vector<std::int64_t>& slots);

/// When each unit's quantised parameters are in a slot as layers read them: around each use.
std::vector<Residency> plan_decoded(const Schedule& schedule, const PlanOptions& options,
                                    const std::vector<Compute>& computes,
                                    std::vector<std::int64_t>& slots);

/// The sizes of slots of kShardSlot, for what slots of `role` hold (kParameter or kQuantized): none
/// where nothing is sharded.
std::vector<std::int64_t> plan_shard_slots(const Schedule& schedule, const PlanOptions& options,
                                           Role role);
/// The sizes of slots of kStagingSlot.
std::vector<std::int64_t> plan_staging_slots(const Schedule& schedule, const PlanOptions& options,
                                             Role role);
/// The sizes of slots for updated parameters that ranks gather on their way back to where they are
/// from step to step: on the device, and on the host for those that go on to the disk. None where
/// parameters are sharded as the optimizer's state is.
std::vector<std::int64_t> plan_update_slots(const Schedule& schedule, const PlanOptions& options,
                                            Tier tier);

/// Whether units have frozen parameters, quantised or not; whether these leave the device without
/// trainable ones, since they are sharded otherwise.
bool has_frozen(const ModelLayout& layout);
inline bool moves_frozen_alone(const Placement& placement, bool has_frozen) {
  return placement.frozen.has_value() && has_frozen;
}

/// By unit: whether its optimizer state is counted to the `share` that StateOptions means.
std::vector<bool> last_trained_units(const ModelLayout& layout, double share);

/// The sizes of the slots for reduced gradients of units whose gradients are on the host.
std::vector<std::int64_t> plan_sum_slots(const Schedule& schedule, const PlanOptions& options,
                                         const GradientRoute& route);

/// When each unit's gradient is being written and reduced, in order of first write; `slot` is -1
/// where it goes to the unit's gradient buffer.
std::vector<Residency> plan_gradients(const Schedule& schedule, const PlanOptions& options,
                                      const GradientRoute& route,
                                      const std::vector<Compute>& computes,
                                      std::vector<std::int64_t>& slots);

/// A layer's input that waits on the host, from its forward to its backward. In order of use: the
/// computes before, or with, which something becomes of it.
struct OffloadedInput {
  int layer = 0;
  int micro_step = 0;
  int forward = 0;   ///< then it goes to the host
  int release = 0;   ///< its memory is given back
  int reserve = 0;   ///< it has memory again, and comes back
  int backward = 0;  ///< it is here
};

/// Those of PlanOptions::offload_activations, in order of their backward.
std::vector<OffloadedInput> plan_inputs(const Schedule& schedule, const PlanOptions& options,
                                        const std::vector<Compute>& computes);
/// Their buffers, one for each layer, which its micro-steps have in turn.
void add_inputs(Schedule& schedule, const PlanOptions& options,
                const std::vector<OffloadedInput>& inputs);

/// When units are in slots, by the kind of slot.
struct Residencies {
  std::vector<Residency> parameters;
  std::vector<Residency> quantized;
  std::vector<Residency> decoded;
  std::vector<Residency> gradients;
  std::vector<OffloadedInput> inputs;
};

/// Appends the actions of all lanes in issue order, without waits.
void emit_actions(Schedule& schedule, const PlanOptions& options, const GradientRoute& route,
                  const std::vector<Compute>& computes, const Residencies& residencies);

}  // namespace tessera
