#include <algorithm>

#include "gradient_sums.h"
#include "operations/factored_rules.h"
#include "operations/operation_rules.h"
#include "operations/rule_tools.h"

// The rules of collectives: what ranks gather from each other, and reduce.
namespace tessera::rules {
namespace {

bool is_disjoint(AxisSet a, AxisSet b) { return a - b == a; }

/// In place, a rank's part must lie where the others expect it; a slot has parts at its beginning.
void require_parts_in_place(ContentWalk& walk, const Action& action) {
  const Operand& to = action.writes.front();
  const ScheduleBuffer& buffer = walk.schedule().buffer(to);
  if (!buffer.is_slot() || buffer.keeps_places()) return;
  walk.require_that(find_buffer(action.reads, to.buffer) == nullptr,
                    "works in place on a slot, where ranks' parts have no place of their own");
}

/// A gradient after its reduction: the sum over the action's axes.
Content summed(ContentWalk& walk, const Action& action, const Operand& operand) {
  Content content = walk.take(operand);
  const auto name = walk.name_of(operand.buffer);
  walk.require_that(content.role == Role::kGradient, name, " holds no gradient to be reduced");
  walk.require_that(content.partial.contains(action.axes), "the gradient of ",
                    walk.unit_name(content.unit), " in ", name, [&] {
                      return content.partial.empty()
                                 ? std::string(" is summed over all ranks already")
                                 : concat(" is still to be summed over ",
                                          to_string(content.partial), ", not over ",
                                          to_string(action.axes));
                    });
  content.partial = content.partial - action.axes;
  content.open = false;
  return content;
}

}  // namespace

void all_gather(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  if (!walk.require_that(!action.reads.empty() && action.writes.size() == 1,
                         "must read one buffer or more and write one")) {
    return;
  }
  const Operand& to = action.writes.front();
  Content content;
  for (const Operand& operand : action.reads) {
    const Content part = walk.take(operand);
    const auto name = walk.name_of(operand.buffer);
    if (&operand != &action.reads.front()) {
      walk.require_that(part.unit == content.unit && part.version == content.version &&
                            part.sharded == content.sharded && part.role == content.role &&
                            part.role == Role::kParameter && !part.flats.overlaps(content.flats),
                        "gathers parts of different things: ",
                        walk.name_of(action.reads.front().buffer), " and ", name);
    }
    walk.require_that(
        part.role == Role::kParameter || part.role == Role::kCode || part.role == Role::kGradient,
        name, " holds neither parameters nor gradients");
    walk.require_that(
        part.sharded.contains(action.axes) &&
            cuts_further(walk.nesting(), part.sharded - action.axes, part.sharded),
        "gathers over ", [&] { return to_string(action.axes); }, ", but reads ", name, " as ",
        [&] { return walk.sharding_text(part.sharded); });
    walk.require_that(
        is_disjoint(part.partial, action.axes), "the gradient of ", walk.unit_name(part.unit),
        " in ", name, " is still to be summed over ", [&] { return to_string(part.partial); },
        ": its parts are not all of the same sum");
    walk.require_that(schedule.buffer(operand).format == schedule.buffer(to).format, "gathers ",
                      name, " into ", walk.name_of(to.buffer), ", which has another format");
    const FlatSet before = content.flats;
    content = part;
    content.flats = content.flats | before;
  }
  content.open = false;
  content.sharded = content.sharded - action.axes;
  if (!content.valid || content.unit < 0) return;
  require_parts_in_place(walk, action);
  const bool of_layers = schedule.buffer(to).holds_for_layers();
  walk.require_that(action.reads.size() == 1 || of_layers, "gathers several buffers into ",
                    walk.name_of(to.buffer));
  const Operand& from = action.reads.front();
  const ScheduleBuffer& source = schedule.buffer(from);
  const bool in_place = from.buffer == to.buffer && source.kind == BufferKind::kUpdateSlot;
  const bool to_layers = source.holds_for_layers() && of_layers;
  walk.require_that(content.role == Role::kGradient || in_place || to_layers || !source.is_slot(),
                    "gathers a slot into ", walk.name_of(to.buffer), ", which is another or none");
  walk.write(to, content);
  if (content.role == Role::kGradient) walk.carry(action.reads.front(), to);
}

void reduce_scatter(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 1, 1)) return;
  Content content = summed(walk, action, action.reads.front());
  const AxisSet cut = content.sharded | action.axes;
  walk.require_that(
      is_disjoint(content.sharded, action.axes) &&
          cuts_further(walk.nesting(), content.sharded, cut),
      "cannot shard over ", [&] { return to_string(action.axes); }, " what is ",
      [&] { return walk.sharding_text(content.sharded); });
  content.sharded = cut;
  require_parts_in_place(walk, action);
  if (walk.sums() != nullptr) walk.sums()->reduce(action);
  walk.write(action.writes.front(), content);
}

void all_reduce(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 1, 1)) return;
  if (walk.schedule().role(action.reads.front().buffer) == Role::kStatistics) {
    return join_statistics(walk, action);
  }
  const Content content = summed(walk, action, action.reads.front());
  walk.require_that(
      action.reads.front().buffer == action.writes.front().buffer && !action.writes.front().adds,
      "must write the buffer that it reads, ", walk.name_of(action.reads.front().buffer),
      ": it sums in place");
  walk.require_that(
      is_disjoint(content.sharded, action.axes), "ranks along ",
      [&] { return to_string(action.axes); }, " hold different parts of ",
      walk.unit_name(content.unit), ", which is ",
      [&] { return walk.sharding_text(content.sharded); });
  if (walk.sums() != nullptr) walk.sums()->reduce(action);
  walk.write(action.writes.front(), content);
}

}  // namespace tessera::rules
