#include "tessera/sharding/validate.h"

#include <algorithm>

#include "validation.h"

namespace tessera {
namespace {

std::vector<int> collectives_of(const Schedule& schedule) {
  std::vector<int> indices;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    if (is_collective(schedule.actions[i].kind)) indices.push_back(static_cast<int>(i));
  }
  return indices;
}

const Action& action_of(const Schedule& schedule, int index) {
  return schedule.actions[static_cast<std::size_t>(index)];
}

// What decides which ranks meet and how many bytes they move: equal on every rank.
bool same_sizes(const Schedule& a, const Schedule& b) {
  return a.mesh == b.mesh && a.placement == b.placement && a.units == b.units &&
         a.parameter_dtype == b.parameter_dtype && a.reduce_dtype == b.reduce_dtype &&
         a.gradient_buffer_axes() == b.gradient_buffer_axes();
}

// Whether two collectives would meet as one operation.
bool same_collective(const Action& a, const Action& b) {
  return a.kind == b.kind && a.unit == b.unit && a.axes == b.axes && a.accumulate == b.accumulate &&
         (a.slot < 0) == (b.slot < 0);
}

// Compares the collectives of all lanes in one sequence, not lane by lane: if two lanes'
// collectives are issued in different orders, waits between the lanes may close a circle through
// two ranks.
void compare_collectives(std::span<const Schedule> ranks, std::size_t rank,
                         std::vector<Violation>& violations) {
  const Schedule& first = ranks.front();
  const Schedule& other = ranks[rank];
  const auto add = [&](int action, const auto&... what) {
    violations.push_back({Rule::kCollectiveOrder, action, concat("rank ", rank, ": ", what...)});
  };
  if (!same_sizes(first, other)) {
    return add(-1, "mesh, placement, units or dtypes differ from rank 0's");
  }
  const std::vector<int> theirs = collectives_of(first);
  const std::vector<int> ours = collectives_of(other);
  const Findings names_of_first(first);
  const Findings names(other);
  for (std::size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i) {
    if (same_collective(action_of(first, theirs[i]), action_of(other, ours[i]))) continue;
    return add(ours[i], names.name(ours[i]), " is its collective number ", i,
               ", but rank 0 issues ", names_of_first.name(theirs[i]));
  }
  if (theirs.size() != ours.size()) {
    add(-1, "issues ", ours.size(), " collectives, but rank 0 issues ", theirs.size());
  }
}

}  // namespace

std::string_view to_string(Rule rule) {
  switch (rule) {
    case Rule::kStructure:
      return "structure";
    case Rule::kResidency:
      return "residency";
    case Rule::kSlotReuse:
      return "slot-reuse";
    case Rule::kReduction:
      return "reduction";
    case Rule::kUpdate:
      return "update";
    case Rule::kHappensBefore:
      return "happens-before";
    case Rule::kCollectiveOrder:
      return "collective-order";
  }
  return "unknown";
}

std::vector<Violation> validate(const Schedule& schedule) {
  Findings findings(schedule);
  check_structure(schedule, findings);
  if (findings.empty()) {
    check_parameters(schedule, findings);
    check_gradients(schedule, findings);
    check_updates(schedule, findings);
    check_happens_before(schedule, findings);
  }
  return findings.take();
}

std::vector<Violation> validate(std::span<const Schedule> ranks) {
  std::vector<Violation> violations;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (Violation& violation : validate(ranks[rank])) {
      violation.message = concat("rank ", rank, ": ", violation.message);
      violations.push_back(std::move(violation));
    }
  }
  if (ranks.empty()) return violations;
  const auto world_size = static_cast<std::size_t>(std::max(ranks.front().mesh.world_size(), 0));
  if (ranks.size() != world_size) {
    violations.push_back(
        {Rule::kCollectiveOrder, -1,
         concat("there are schedules of ", ranks.size(), " ranks for a mesh of ", world_size)});
  }
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    compare_collectives(ranks, rank, violations);
  }
  return violations;
}

void require_valid(const Schedule& schedule) {
  const std::vector<Violation> violations = validate(schedule);
  if (violations.empty()) return;
  std::string text = concat("the schedule breaks ", violations.size(), " rules:");
  for (const Violation& v : violations) text += concat("\n  ", to_string(v.rule), ": ", v.message);
  fail(ErrorCode::kInternal, text);
}

}  // namespace tessera
