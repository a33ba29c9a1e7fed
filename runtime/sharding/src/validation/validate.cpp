#include "tessera/sharding/validate.h"

#include <algorithm>
#include <array>
#include <limits>

#include "tessera/core/error.h"
#include "tessera/sharding/contents.h"
#include "tessera/sharding/operation.h"
#include "validation/validation.h"

// [Note: proof] Waits point back and a lane runs in order of issue, so the order of issue is itself
// a possible execution. Contents are therefore checked by walking the actions once in that order,
// each by its operation's rule (contents.h). The happens-before pass then shows that any two
// accesses to a buffer of which one writes are ordered, the same way as they are issued; so every
// other interleaving gives each read the same value, and what the walk has shown holds for all of
// them.
namespace tessera {
namespace {

std::vector<int> collectives_of(const Schedule& schedule) {
  std::vector<int> indices;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    if (is_collective(schedule.actions[i])) indices.push_back(static_cast<int>(i));
  }
  return indices;
}

const Action& action_of(const Schedule& schedule, int index) {
  return schedule.actions[static_cast<std::size_t>(index)];
}

// Whether two lists of operands are the same parts of the same things: the same bytes.
bool same_operands(const Schedule& a, const std::vector<Operand>& of_a, const Schedule& b,
                   const std::vector<Operand>& of_b) {
  return std::ranges::equal(of_a, of_b, [&](const Operand& x, const Operand& y) {
    return a.role(x.buffer) == b.role(y.buffer) && a.buffer(x).format == b.buffer(y).format &&
           x.unit == y.unit && x.sharded == y.sharded && x.adds == y.adds;
  });
}

// Whether two collectives would meet as one operation.
bool same_collective(const Schedule& sa, const Action& a, const Schedule& sb, const Action& b) {
  return a.operation == b.operation && a.axes == b.axes && a.lane == b.lane &&
         same_operands(sa, a.reads, sb, b.reads) && same_operands(sa, a.writes, sb, b.writes);
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
  if (!(first.purpose == other.purpose && first.mesh == other.mesh &&
        first.placement == other.placement && first.micro_steps == other.micro_steps &&
        first.units == other.units)) {
    return add(-1, "purpose, mesh, placement, micro-steps or units differ from rank 0's");
  }
  const auto name = [](const Schedule& schedule, int index) {
    return concat("action ", index, " (", describe(schedule, action_of(schedule, index)), ")");
  };
  const std::vector<int> theirs = collectives_of(first);
  const std::vector<int> ours = collectives_of(other);
  for (std::size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i) {
    if (same_collective(first, action_of(first, theirs[i]), other, action_of(other, ours[i]))) {
      continue;
    }
    return add(ours[i], name(other, ours[i]), " is its collective number ", i,
               ", but rank 0 issues ", name(first, theirs[i]));
  }
  if (theirs.size() != ours.size()) {
    add(-1, "issues ", ours.size(), " collectives, but rank 0 issues ", theirs.size());
  }
}

}  // namespace

std::string_view to_string(Rule rule) {
  switch (rule) {
    case Rule::kForm:
      return "form";
    case Rule::kHappensBefore:
      return "happens-before";
    case Rule::kContents:
      return "contents";
    case Rule::kEnd:
      return "end";
    case Rule::kCollectiveOrder:
      return "collective-order";
    case Rule::kMessages:
      return "messages";
    case Rule::kProgress:
      return "progress";
  }
  return "unknown";
}

std::vector<Violation> validate(const Schedule& schedule) {
  std::vector<Violation> violations;
  check_form(schedule, violations);
  if (!violations.empty()) return violations;
  check_happens_before(schedule, violations);
  ContentWalk(schedule, violations).run();
  return violations;
}

std::vector<Violation> validate(std::span<const Schedule> ranks) {
  std::vector<Violation> violations;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (Violation& violation : validate(ranks[rank])) {
      violation.message = concat("rank ", rank, ": ", violation.message);
      violations.push_back(std::move(violation));
    }
  }
  const auto malformed = [](const Violation& violation) { return violation.rule == Rule::kForm; };
  if (ranks.empty() || std::ranges::any_of(violations, malformed)) return violations;
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

std::vector<Violation> validate_times(const Schedule& schedule, std::span<const ActionTime> times) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Span {
    double begin = kNever, end = -kNever;
  };
  const auto count = static_cast<std::int64_t>(schedule.actions.size());
  const auto by_step =
      std::minmax_element(times.begin(), times.end(),
                          [](const ActionTime& a, const ActionTime& b) { return a.step < b.step; });
  if (times.empty() || count == 0) return {};
  const std::int64_t first_step = by_step.first->step;
  const std::int64_t steps = by_step.second->step - first_step + 1;
  // Actions are numbered on from step to step.
  std::vector<Span> spans(static_cast<std::size_t>(steps * count));
  for (const ActionTime& time : times) {
    if (time.action < 0 || time.action >= count) continue;
    Span& span = spans[static_cast<std::size_t>((time.step - first_step) * count + time.action)];
    span.begin = std::min(span.begin, time.begin);
    span.end = std::max(span.end, time.end);
  }
  const auto span_of = [&](std::int64_t number) -> Span& {
    return spans[static_cast<std::size_t>(number)];
  };
  const auto name_of = [&](std::int64_t number) {
    const auto index = static_cast<int>(number % count);
    std::string name =
        concat("action ", index, " (", describe(schedule, action_of(schedule, index)), ")");
    if (steps > 1) name += concat(" of step ", first_step + number / count);
    return name;
  };
  std::vector<Violation> violations;
  const auto after = [&](std::int64_t number, std::int64_t other, const char* why) {
    if (span_of(other).end <= span_of(number).begin) return;
    violations.push_back(
        {Rule::kHappensBefore, static_cast<int>(number % count),
         concat(name_of(number), " began before ", name_of(other), " had ended, ", why)});
  };
  struct Access {
    std::int64_t writer = -1;
    std::vector<std::int64_t> readers{};
  };
  std::vector<Access> buffers(schedule.buffers.size());
  std::array<std::int64_t, kLanes> last{};
  last.fill(-1);
  for (std::int64_t i = 0; i < steps * count; ++i) {
    const Action& action = action_of(schedule, static_cast<int>(i % count));
    std::vector<std::int64_t> waits;
    for (const int wait : action.waits) waits.push_back(i / count * count + wait);
    if (i >= count) {
      for (const int wait : action.previous_waits) waits.push_back((i / count - 1) * count + wait);
    }
    std::int64_t& lane = last[static_cast<std::size_t>(action.lane)];
    if (Span& now = span_of(i); now.end == -kNever) {
      // Nothing to do, or nothing known: it is over with all that it comes after.
      if (lane >= 0) now.end = span_of(lane).end;
      for (const std::int64_t wait : waits) now.end = std::max(now.end, span_of(wait).end);
    }
    if (lane >= 0) after(i, lane, "which comes before it on its lane");
    lane = i;
    for (const std::int64_t wait : waits) after(i, wait, "for which it waits");
    for (const Operand& operand : action.reads) {
      Access& access = buffers[static_cast<std::size_t>(operand.buffer)];
      if (access.writer >= 0) after(i, access.writer, "which writes what it reads");
      access.readers.push_back(i);
    }
    for (const Operand& operand : action.writes) {
      Access& access = buffers[static_cast<std::size_t>(operand.buffer)];
      if (access.writer >= 0 && access.writer != i)
        after(i, access.writer, "which writes the same");
      for (const std::int64_t reader : access.readers) {
        if (reader != i) after(i, reader, "which reads what it writes");
      }
      access = {.writer = i, .readers = {}};
    }
  }
  return violations;
}

}  // namespace tessera
