#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/sharding/schedule.h"

namespace tessera {

/// The ways in which a schedule may be wrong.
enum class Rule : std::uint8_t {
  kForm,             ///< indices in range, fields as the operation demands, waits point back
  kHappensBefore,    ///< two accesses to a buffer of which one writes are ordered
  kContents,         ///< buffers hold what actions read; contributions are added once, in order
  kEnd,              ///< the step ends with every persistent buffer itself, one version on
  kCollectiveOrder,  ///< all ranks issue the same collectives in the same order over all lanes
  kMessages,         ///< pipeline ranks receive what others send, in the same order
  kProgress,         ///< no circle of waits and meetings of pipeline ranks
};

std::string_view to_string(Rule rule);

struct Violation {
  Rule rule;
  int action = -1;      ///< index of the offending action, -1 for the schedule as a whole
  std::string message;  ///< names actions, units and buffers
};

/// Proves a schedule safe to execute: an empty result means that no interleaving of the lanes can
/// read a buffer before it is written or while it is overwritten, and that the step is complete. It
/// knows operations by the table's rules (operation.h), and no strategy. Linear in the number of
/// operands. [Note: proof] in validate.cpp.
std::vector<Violation> validate(const Schedule& schedule);

/// Validates each rank's schedule and that they agree on collectives (Rule::kCollectiveOrder).
/// For whoever makes schedules that differ by rank, and for tests of planning. The trainer does not
/// call it: its ranks share one schedule or plan it from the same settings (`tessera test` compares
/// those between processes), and --check-collectives compares what is really issued.
std::vector<Violation> validate(std::span<const Schedule> ranks);

/// Throws Error{kInternal} with every violation if there are any.
void require_valid(const Schedule& schedule);

/// When an action ran, by any clock: a real one, or a count of events.
struct ActionTime {
  int action = 0;
  double begin = 0.0;
  double end = 0.0;
  std::int64_t step = 0;
};

/// Checks a recorded run against the schedule: every action that must come after another (an
/// earlier one of its lane, or one that it waits for) began when that had ended, and no two actions
/// that touch the same buffer, one of them writing, overlapped. The run may be of several steps
/// that follow each other. `times` may name an action several times; one that it does not name
/// takes no time. Finds an executor that ignores a wait.
std::vector<Violation> validate_times(const Schedule& schedule, std::span<const ActionTime> times);

}  // namespace tessera
