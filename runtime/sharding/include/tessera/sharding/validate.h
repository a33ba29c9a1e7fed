#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/sharding/schedule.h"

namespace tessera {

/// What a schedule may get wrong.
enum class Rule : std::uint8_t {
  kStructure,        ///< indices in range, lanes and fields as the kind demands, waits point back
  kResidency,        ///< parameters are used only between their unshard and their reshard
  kSlotReuse,        ///< a slot is taken only when its last holder has let go
  kReduction,        ///< every gradient is reduced exactly once per reduction, over all axes
  kUpdate,           ///< every trainable unit is updated once, after its gradient is complete
  kHappensBefore,    ///< two accesses to a buffer of which one writes are ordered
  kCollectiveOrder,  ///< all ranks issue the same collectives in the same order over all lanes
};

std::string_view to_string(Rule rule);

struct Violation {
  Rule rule;
  int action = -1;      ///< index of the offending action, -1 for the schedule as a whole
  std::string message;  ///< names actions, units and slots
};

/// Proves a schedule safe to execute: an empty result means that no interleaving of the lanes can
/// read a buffer before it is written or while it is overwritten, and that gradients are complete.
/// Linear in the number of actions.
std::vector<Violation> validate(const Schedule& schedule);

/// Validates each rank's schedule and that they agree on collectives (Rule::kCollectiveOrder).
/// For whoever makes schedules that differ by rank, and for tests of planning. The trainer does not
/// call it: its ranks share one schedule or plan it from the same settings (`tessera test` compares
/// those between processes), and --check-collectives compares what is really issued.
std::vector<Violation> validate(std::span<const Schedule> ranks);

/// Throws Error{kInternal} with every violation if there are any.
void require_valid(const Schedule& schedule);

}  // namespace tessera
