#pragma once

#include <span>
#include <string_view>

#include "tessera/sharding/layout.h"
#include "tessera/sharding/plan_options.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// A pass of planning: a pure function that reads nothing but the schedule. What a pass returns can
/// be executed, and `plan()` runs one after the other. To add a pass: a file with its function, a
/// row of the table, a test.
struct PlanPass {
  std::string_view name;
  std::string_view summary;  ///< one line for people
  Schedule (*run)(Schedule schedule) = nullptr;
};

/// All of them, in their order.
std::span<const PlanPass> plan_passes();

/// The schedule that the first pass takes: units, layers and options, without buffers and actions.
/// Throws as plan() does.
Schedule describe_step(const ModelLayout& layout, const PlanOptions& options);

/// The step of one rank: passes through layers by micro-step, with buffers of a micro-step's
/// gradients, which casts add up. All parameters are whole and on the device.
Schedule order(Schedule schedule);
/// Adds the gradient norm and the optimizer steps.
Schedule update(Schedule schedule);
/// Cuts parameters, gradients and optimizer state as the placement says: an all-gather before each
/// use of a cut parameter and a reshard after it, reductions of gradients, an all-gather of what
/// ranks have updated in parts.
Schedule shard(Schedule schedule);
/// Moves state, gradients and layers' inputs to the tiers where they are kept, with copies around
/// each use, and decodes quantised parameters before each use.
Schedule tiers(Schedule schedule);
/// Issues what brings parameters and inputs ahead of use, by the depths of the policy, and joins
/// uses of a unit between which it would be pointless to release its parameters.
Schedule prefetch(Schedule schedule);
/// Makes the statistics of matrices that a factored optimizer's steps read: sums of squares, joined
/// over ranks, and the moments, factors and sizes of updates that follow from them.
Schedule factored(Schedule schedule);
/// Makes the scales of fp8 of earlier steps: passes read the histories of their layers' tensors and
/// take the largest magnitudes, whose maximum over ranks a roll adds to the histories.
Schedule histories(Schedule schedule);
/// Gathers matrices that layers can read in E4M3 as codes: the largest magnitudes of ranks' shards,
/// joined over ranks in groups of units before the first use, make the scales.
Schedule codes(Schedule schedule);
/// Gives contents, each of which has a buffer of its own until here, the slots of rings.
Schedule slots(Schedule schedule);
/// Waits that actions' operands demand, whatever waits there were: two accesses to a buffer of
/// which one writes follow one another as they stand in the list, and as the list follows itself.
/// Waits are the fewest that fix this order and no more; see [Note: waits].
Schedule synchronise(Schedule schedule);

}  // namespace tessera
