#include "gradient_sums.h"
#include "operations/operation_rules.h"
#include "tessera/core/error.h"

// The rules of messages between pipeline ranks, and of what is tied across them. That both sides
// of a message mean the same is for validate() of a step plan to show.
namespace tessera::rules {
namespace {

/// Whether the action has one operand on this side and none on the other.
bool has_one_operand(ContentWalk& walk, const Action& action, bool reads) {
  const std::size_t there = reads ? action.reads.size() : action.writes.size();
  const std::size_t others = reads ? action.writes.size() : action.reads.size();
  return walk.require_that(there == 1 && others == 0, "must ", reads ? "read" : "write",
                           " one buffer, and no other");
}

/// Whether an activation, or its gradient, may pass between this pipeline rank and the action's
/// peer.
void require_boundary(ContentWalk& walk, const Action& action, Role role, bool sends) {
  const Schedule& schedule = walk.schedule();
  const bool back = role == Role::kActivationGradient;
  const bool known = action.layer >= 0 && schedule.is_sent(action.layer);
  if (!walk.require_that(known, "names a layer whose output stays where it is made")) return;
  const int before = schedule.rank_of(action.layer), behind = schedule.rank_of(action.layer + 1);
  const bool is_sender_behind = back;
  const int sender = is_sender_behind ? behind : before;
  const int receiver = is_sender_behind ? before : behind;
  const int own = sends ? sender : receiver, other = sends ? receiver : sender;
  walk.require_that(schedule.pipeline.rank == own && action.peer == other, "must be between the ",
                    "pipeline ranks of the layer and of the one behind it, ", before, " and ",
                    behind);
}

const ScheduleUnit& unit_of(const ContentWalk& walk, int unit) {
  return walk.schedule().units[static_cast<std::size_t>(unit)];
}

/// Whether `unit` is a mirror of a unit that another pipeline rank keeps.
bool is_mirror_of_other_rank(const ContentWalk& walk, int unit, int rank) {
  const ScheduleUnit& mirror = unit_of(walk, unit);
  return mirror.mirrors >= 0 && unit_of(walk, mirror.mirrors).rank == rank;
}

/// The gradient of a mirror, to the rank that keeps the unit.
void send_gradient(ContentWalk& walk, const Action& action, const Content& gradient) {
  const int unit = gradient.unit;
  walk.require_that(is_mirror_of_other_rank(walk, unit, action.peer), "sends the gradient of ",
                    walk.unit_name(unit), ", which is no mirror of a unit of pipeline rank ",
                    action.peer);
  require_complete(walk, gradient);
  walk.require_that(gradient.sharded == walk.nesting().placement().optimizer,
                    "sends another part of ", walk.unit_name(unit), " than its optimizer updates");
  bool& is_sent = walk.is_normed(walk.id_of(gradient));
  walk.require_that(!is_sent, "the gradient of ", walk.unit_name(unit), " has been sent already");
  is_sent = true;
  if (walk.sums() != nullptr) walk.sums()->send(action.reads.front());
}

/// Updated parameters, to a rank that has a mirror of the unit.
void send_parameters(ContentWalk& walk, const Action& action, const Content& parameters) {
  const Schedule& schedule = walk.schedule();
  bool is_mirrored = false;
  for (const ScheduleUnit& unit : schedule.units) {
    is_mirrored = is_mirrored || (unit.mirrors == parameters.unit && unit.rank == action.peer);
  }
  walk.require_that(is_mirrored, "pipeline rank ", action.peer, " has no mirror of ",
                    walk.unit_name(parameters.unit));
  walk.require_that(parameters.version == 1, "sends ", walk.unit_name(parameters.unit),
                    ", which this step has not updated yet");
  walk.require_that(parameters.sharded == walk.nesting().placement().parameter,
                    "sends another part of ", walk.unit_name(parameters.unit), " than ranks keep");
}

}  // namespace

namespace {

/// The two operands of a copy between what layers leave and a message. False: a violation.
bool check_copy(ContentWalk& walk, const Action& action, bool packs) {
  if (!walk.require_that(action.reads.size() == 1 && action.writes.size() == 1,
                         "must read one buffer and write one")) {
    return false;
  }
  const Schedule& schedule = walk.schedule();
  const ScheduleBuffer& from = schedule.buffer(action.reads.front());
  const ScheduleBuffer& to = schedule.buffer(action.writes.front());
  const ScheduleBuffer& activation = packs ? from : to;
  const ScheduleBuffer& message = packs ? to : from;
  walk.require_that(!action.writes.front().adds, "adds where it copies");
  return walk.require_that(
      activation.is_activation() && message.role == activation.role &&
          message.kind == (packs ? BufferKind::kSendSlot : BufferKind::kReceiveSlot),
      "must be between what a layer has left and a ",
      to_string(packs ? BufferKind::kSendSlot : BufferKind::kReceiveSlot), " of the same role");
}

}  // namespace

/// The layer's next reader is another pipeline rank.
void pack(ContentWalk& walk, const Action& action) {
  if (!check_copy(walk, action, true)) return;
  const Operand& from = action.reads.front();
  const ScheduleBuffer& activation = walk.schedule().buffer(from);
  const auto name = walk.name_of(from.buffer);
  walk.require_that(walk.read(from).output, "reads ", name, ", which was consumed already");
  walk.require_that(walk.schedule().is_sent(activation.layer), "copies ", name,
                    ", which another layer of this pipeline rank reads");
  Content& content = walk.at(from.buffer);
  content.output = false;
  content.valid = content.kept || content.weights;
  walk.write(action.writes.front(),
             {.role = activation.role, .begin = activation.layer, .end = activation.micro_step});
}

void unpack(ContentWalk& walk, const Action& action) {
  if (!check_copy(walk, action, false)) return;
  const Content message = walk.take(action.reads.front());
  const Operand& to = action.writes.front();
  const ScheduleBuffer& activation = walk.schedule().buffer(to);
  walk.require_that(
      message.begin == activation.layer && message.end == activation.micro_step, "copies ",
      [&] { return walk.message_text(message); }, " to ", walk.name_of(to.buffer));
  walk.write(to, {.role = activation.role, .output = true});
}

void send(ContentWalk& walk, const Action& action) {
  if (!has_one_operand(walk, action, true)) return;
  const Operand& operand = action.reads.front();
  const Content content = walk.take(operand);
  if (!content.valid) return;
  if (operand.unit < 0) {
    walk.require_that(walk.schedule().is_of_kind(operand, BufferKind::kSendSlot),
                      "sends from another buffer than one for messages");
    walk.require_that(content.begin == action.layer && content.end == action.micro_step, "sends ",
                      walk.name_of(operand.buffer), ", which holds ",
                      [&] { return walk.message_text(content); });
    return require_boundary(walk, action, content.role, true);
  }
  walk.require_that(action.layer < 0 && content.unit >= 0, "sends what is of no layer");
  if (content.unit < 0) return;
  if (content.role == Role::kGradient) return send_gradient(walk, action, content);
  walk.require_that(content.role == Role::kParameter,
                    "sends neither a gradient nor parameters of a unit");
  send_parameters(walk, action, content);
}

void receive(ContentWalk& walk, const Action& action) {
  if (!has_one_operand(walk, action, false)) return;
  const Schedule& schedule = walk.schedule();
  const Operand& operand = action.writes.front();
  const ScheduleBuffer& buffer = schedule.buffer(operand);
  walk.require_that(!operand.adds, "adds to ", walk.name_of(operand.buffer));
  if (operand.unit < 0) {
    walk.require_that(buffer.kind == BufferKind::kReceiveSlot,
                      "receives to another buffer than one for messages");
    walk.write(operand, {.role = buffer.role, .begin = action.layer, .end = action.micro_step});
    return require_boundary(walk, action, buffer.role, false);
  }
  Content content{.role = buffer.role,
                  .unit = operand.unit,
                  .flats = schedule.flats(operand),
                  .sharded = operand.sharded};
  const ScheduleUnit& mirror = unit_of(walk, operand.unit);
  if (!walk.require_that(mirror.mirrors >= 0, "receives ", mirror.name,
                         ", which is no mirror of another unit")) {
    return;
  }
  if (buffer.role == Role::kGradient) {
    walk.require_that(buffer.kind == BufferKind::kReceiveSlot && mirror.rank == action.peer &&
                          schedule.is_here(unit_of(walk, mirror.mirrors)),
                      "must receive to a buffer for messages, from the rank that has ",
                      mirror.name);
    walk.require_that(operand.sharded == walk.nesting().placement().optimizer,
                      "receives another part of ", mirror.name, " than the optimizer updates");
    if (walk.sums() != nullptr) walk.sums()->receive(operand);
  } else {
    walk.require_that(
        buffer.persistent && buffer.role == Role::kParameter && schedule.is_here(mirror) &&
            is_mirror_of_other_rank(walk, operand.unit, action.peer),
        "must receive the parameters of ", mirror.name, " from the rank that updates them");
    walk.require_that(walk.at(operand.buffer).version == 0, mirror.name, " was received already");
    content.version = 1;
  }
  walk.write(operand, content);
}

void add_tied(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(action.reads.size() == 1 && action.writes.size() == 1,
                         "must read one buffer and write one")) {
    return;
  }
  const Operand &from = action.reads.front(), &to = action.writes.front();
  const Content gradient = walk.take(from);
  if (!gradient.valid || gradient.unit < 0) return;
  const ScheduleUnit& mirror = unit_of(walk, gradient.unit);
  walk.require_that(gradient.role == Role::kGradient && mirror.mirrors == to.unit,
                    walk.name_of(from.buffer), " holds no gradient of a mirror of ",
                    walk.unit_name(to.unit));
  // One that was received is complete, or its sender's schedule is not valid.
  if (walk.schedule().is_here(mirror)) require_complete(walk, gradient);
  walk.require_that(to.adds, "overwrites ", walk.name_of(to.buffer), "; it adds to it");
  const Content sum = walk.read(to);
  if (!walk.require_that(sum.valid && sum.role == Role::kGradient && sum.unit >= 0,
                         walk.name_of(to.buffer), " holds no gradient")) {
    return;
  }
  require_complete(walk, sum);
  walk.require_that(!walk.is_normed(walk.id_of(sum)), "the norm of ", walk.unit_name(sum.unit),
                    " has been taken already");
  const AxisSet optimizer = walk.nesting().placement().optimizer;
  walk.require_that(sum.sharded == optimizer && gradient.sharded == optimizer,
                    "adds another part than the optimizer updates");
  const Schedule& schedule = walk.schedule();
  walk.require_that(
      schedule.flat(walk.id_of(gradient)).name == schedule.flat(walk.id_of(sum)).name &&
          schedule.buffer(from).format == schedule.buffer(to).format,
      "adds another flat parameter, or one of another format");
  bool& is_added = walk.is_normed(walk.id_of(gradient));
  walk.require_that(!is_added, "the gradient of ", mirror.name, " has been added already");
  is_added = true;
  if (walk.sums() != nullptr) walk.sums()->add_tied(from, to);
}

}  // namespace tessera::rules
