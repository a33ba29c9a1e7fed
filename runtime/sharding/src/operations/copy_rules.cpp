#include <algorithm>

#include "operations/operation_rules.h"
#include "operations/rule_tools.h"

// The rules of what moves contents within a rank: to other buffers, tiers and formats.
namespace tessera::rules {
namespace {

/// A unit's parameters, or its shards of them, for the layers that read slots.
void copy_to_slot(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  const Operand& to = action.writes.front();
  Content content;
  for (const Operand& operand : action.reads) {
    const ScheduleBuffer& source = schedule.buffer(operand);
    const bool from_slot = action.reads.size() == 1 && source.holds_for_layers();
    const Content part = from_slot ? walk.take(operand) : walk.read(operand);
    if (&operand != &action.reads.front()) {
      walk.require_that(part.unit == content.unit && part.version == content.version &&
                            part.sharded == content.sharded && !part.flats.overlaps(content.flats),
                        "copies parts of different things: ",
                        walk.name_of(action.reads.front().buffer), " and ", source.name);
    }
    walk.require_that(part.role == Role::kParameter, source.name,
                      " holds no parameters, which are what slots have copies of");
    walk.require_that(from_slot || !source.is_slot(), "copies ", source.name,
                      ", which is for something else than what layers read");
    walk.require_that(source.format == schedule.buffer(to).format, "copies to another format");
    const FlatSet before = content.flats;
    content = part;
    content.flats = content.flats | before;
  }
  if (!content.valid || content.unit < 0) return;
  walk.require_that(!to.adds, "adds where it copies");
  content.open = false;
  walk.write(to, content);
}

/// Parts of parameters that this rank has updated to a slot where ranks gather them, and all of
/// them back to where they are from step to step; on the way to the disk, by another slot on the
/// host.
void copy_updated(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 1, 1)) return;
  const Operand& from = action.reads.front();
  const Operand& to = action.writes.front();
  const ScheduleBuffer& source = walk.schedule().buffer(from);
  const ScheduleBuffer& target = walk.schedule().buffer(to);
  Content content = source.is_slot() ? walk.take(from) : walk.read(from);
  content.origin = -1;
  for (const ScheduleBuffer* const end : {&source, &target}) {
    const bool is_state =
        end->persistent || (end == &source && end->kind == BufferKind::kStateSlot);
    walk.require_that(
        end->role == Role::kParameter && (is_state || end->kind == BufferKind::kUpdateSlot),
        "copies ", source.name, " to ", target.name,
        ": updated parameters come from what a unit keeps, and return to it");
  }
  walk.require_that(source.format == target.format, "copies to another format");
  walk.require_that(!to.adds, "adds where it copies");
  walk.write(to, content);
}

/// State from the disk to a slot, and back to where it came from; or master weights to the
/// parameters, which in one format they are.
void copy_state(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  const Operand& from = action.reads.front();
  const Operand& to = action.writes.front();
  const ScheduleBuffer& source = schedule.buffer(from);
  const ScheduleBuffer& target = schedule.buffer(to);
  const bool goes_home = source.is_slot() && walk.at(from.buffer).origin == to.buffer;
  Content content = goes_home ? walk.take(from) : walk.read(from);
  if (!content.valid) return;
  if (target.is_slot()) {
    walk.require_that(source.persistent && content.role == target.role, "copies ", source.name,
                      " to ", target.name, ", which is for state that is on disk");
    walk.require_that(from.sharded == source.sharded || content.role == Role::kParameter,
                      "copies a part of ", source.name, " only");
    content.origin = from.buffer;
  } else if (goes_home) {
    content.origin = -1;
  } else {
    walk.require_that(
        content.role == Role::kMaster && target.role == Role::kParameter && target.persistent,
        "copies ", source.name, " to ", target.name, ", which is not where it came from");
    content.role = Role::kParameter;
    content.origin = -1;
  }
  walk.require_that(source.format == target.format, "copies to another format");
  walk.require_that(!to.adds, "adds where it copies");
  walk.write(to, content);
}

/// The next place of what a layer keeps for its backward.
void move_input(ContentWalk& walk, const Operand& operand, InputPlace from, InputPlace to,
                std::string_view why_not) {
  Content& content = walk.change(operand);
  walk.require_that(content.role == Role::kActivation && content.kept && content.place == from,
                    walk.name_of(operand.buffer), " ", why_not);
  content.place = to;
}

/// A layer's input on its way to the host or back. Nobody reads it meanwhile: passes find that out.
void copy_input(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  if (!has_operands(walk, action, 1, 1)) return;
  const Operand& from = action.reads.front();
  const Operand& to = action.writes.front();
  const bool leaves = schedule.buffer(from).is_activation();
  const int activation = leaves ? from.buffer : to.buffer;
  const int on_host = leaves ? to.buffer : from.buffer;
  const auto name = walk.name_of(activation);
  const int layer = schedule.buffers[static_cast<std::size_t>(activation)].layer;
  if (!walk.require_that(
          schedule.role(activation) == Role::kActivation && schedule.keeps_input(layer), name,
          " is not the input of a recomputed layer, which alone may leave") ||
      !walk.require_that(
          schedule.buffers[static_cast<std::size_t>(on_host)].kind == BufferKind::kInput &&
              schedule.buffers[static_cast<std::size_t>(on_host)].layer == layer,
          "copies ", name, " from or to another buffer than its layer's on the host")) {
    return;
  }
  walk.require_that(!to.adds, "adds where it copies");
  if (leaves) {
    move_input(walk, from, InputPlace::kDevice, InputPlace::kBoth, "has left already");
    walk.require_that(!walk.at(on_host).valid, "overwrites ", walk.name_of(on_host),
                      ", which is still to be copied back");
    return walk.write(to, {.role = Role::kActivation, .begin = activation});
  }
  walk.require_that(walk.read(from).begin == activation, walk.name_of(on_host),
                    " holds what another micro-step has left");
  move_input(walk, to, InputPlace::kReserved, InputPlace::kDevice, "has no memory for the copy");
  walk.at(on_host).valid = false;
}

}  // namespace

void reshard(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 0, 1)) return;
  const Operand& slot = action.writes.front();
  const ScheduleBuffer& buffer = walk.schedule().buffer(slot);
  walk.require_that(buffer.is_slot() && buffer.role != Role::kGradient, buffer.name,
                    " is no slot for unsharded parameters");
  walk.take(slot);
}

void decode(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 1, 1)) return;
  Content content = walk.read(action.reads.front());
  const Operand& to = action.writes.front();
  if (!content.valid || content.unit < 0) return;
  walk.require_that(content.role == Role::kParameter && content.flats.size() == 1 &&
                        walk.schedule().flat(walk.id_of(content)).is_quantized(),
                    walk.name_of(action.reads.front().buffer), " holds nothing that is quantised");
  walk.require_that(content.sharded.empty(), "reads a part of ", walk.unit_name(content.unit),
                    " only: scales and codes of a tensor may be in different parts");
  walk.require_that(walk.schedule().buffer(to).format == walk.schedule().parameter_dtype,
                    "writes another format than layers read");
  walk.require_that(!to.adds, "adds where it decodes");
  content.role = Role::kDecoded;
  walk.write(to, content);
}

void cast(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 1, 1)) return;
  Content content = walk.take(action.reads.front());
  walk.require_that(content.role == Role::kGradient, walk.name_of(action.reads.front().buffer),
                    " holds no gradient");
  walk.require_that(action.reads.front().buffer != action.writes.front().buffer,
                    "casts a buffer to itself");
  content.open = false;
  walk.carry(action.reads.front(), action.writes.front());
  walk.write(action.writes.front(), content);
}

void release(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 0, 1)) return;
  move_input(walk, action.writes.front(), InputPlace::kBoth, InputPlace::kHost,
             "has no copy on the host, or no memory");
}

void reserve(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 0, 1)) return;
  move_input(walk, action.writes.front(), InputPlace::kHost, InputPlace::kReserved,
             "has not left the device");
}

void copy(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(!action.reads.empty() && action.writes.size() == 1,
                         "must read one buffer or more and write one")) {
    return;
  }
  const auto is_activation = [&](const Operand& operand) {
    return walk.schedule().buffer(operand).is_activation();
  };
  if (is_activation(action.writes.front()) || std::ranges::any_of(action.reads, is_activation)) {
    return copy_input(walk, action);
  }
  const Operand& to = action.writes.front();
  const ScheduleBuffer& target = walk.schedule().buffer(to);
  for (const Operand& from : action.reads) {
    const Tier tier = walk.schedule().buffer(from).tier;
    const bool skips_host = (tier == Tier::kDisk && target.tier != Tier::kHost) ||
                            (target.tier == Tier::kDisk && tier != Tier::kHost);
    walk.require_that(!skips_host, "copies between ", to_string(tier), " and ",
                      to_string(target.tier), ": what is on disk passes through the host's memory");
  }
  if (target.kind == BufferKind::kUpdateSlot ||
      walk.schedule().is_of_kind(action.reads.front(), BufferKind::kUpdateSlot)) {
    return copy_updated(walk, action);
  }
  if (target.holds_for_layers()) return copy_to_slot(walk, action);
  if (!has_operands(walk, action, 1, 1)) return;
  if (target.kind == BufferKind::kStateSlot ||
      walk.schedule().is_of_kind(action.reads.front(), BufferKind::kStateSlot)) {
    return copy_state(walk, action);
  }
  const Operand& from = action.reads.front();
  const ScheduleBuffer& source = walk.schedule().buffer(from);
  // Slots of sums go by their contents: a unit has one gradient.
  const bool of_sums = source.kind == BufferKind::kSumSlot || target.kind == BufferKind::kSumSlot;
  Content content = source.kind == BufferKind::kSumSlot ? walk.take(from) : walk.read(from);
  // In one format, master weights are the parameters.
  const bool of_masters = content.role == Role::kMaster && target.role == Role::kParameter;
  if (of_masters) content.role = Role::kParameter;
  walk.require_that(of_sums || of_masters || source.is_same_tensor(target), target.name,
                    " is for a copy of another buffer than ", source.name);
  walk.require_that(from.buffer != to.buffer, "copies a buffer to itself");
  walk.require_that(content.version == 0 || !(target.kind == BufferKind::kSnapshot), "copies ",
                    source.name, ", which this step has updated already");
  walk.require_that(source.format == target.format, "copies to another format");
  walk.require_that(!to.adds, "adds where it copies");
  content.open = false;
  if (content.role == Role::kGradient) {
    const FlatId id = walk.id_of(content);
    // Whoever reads the copy reads what is added to the original later without it.
    if (content.end == walk.all_contributions(id)) walk.require_mirrors_added(id);
    walk.carry(from, to);
  }
  walk.write(to, content);
}

}  // namespace tessera::rules
