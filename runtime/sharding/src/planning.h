#pragma once

#include <vector>

#include "residency.h"
#include "tessera/sharding/plan.h"
#include "tessera/sharding/schedule.h"

// The parts of plan(), in the order of [Note: planning] in plan.cpp.
namespace tessera {

/// An action of the compute lane, before slots and waits are known.
struct Compute {
  ActionKind kind;
  int layer;
  int micro_step;
};

/// When each unit's parameters are in a slot, in order of issue; empty if they are whole and always
/// there. Sizes schedule.parameter_slots.
std::vector<Residency> plan_parameters(Schedule& schedule, const PlanOptions& options,
                                       const std::vector<Compute>& computes);

/// When each unit's gradient is being written and reduced, in order of first write; `slot` is -1
/// where it goes to the unit's gradient buffer. Sizes schedule.gradient_slots and fills
/// schedule.gradient_targets.
std::vector<Residency> plan_gradients(Schedule& schedule, const PlanOptions& options,
                                      const std::vector<Compute>& computes);

/// Appends the actions of all lanes in issue order, each with its waits.
void emit_actions(Schedule& schedule, const std::vector<Compute>& computes,
                  const std::vector<Residency>& parameters,
                  const std::vector<Residency>& gradients);

}  // namespace tessera
