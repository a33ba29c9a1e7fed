#include "operation_rules.h"

#include <algorithm>

#include "gradient_sums.h"

namespace tessera::rules {
namespace {

const Operand* find_role(const Schedule& schedule, const std::vector<Operand>& operands,
                         Role role) {
  const auto found = std::ranges::find_if(
      operands, [&](const Operand& operand) { return schedule.role(operand.buffer) == role; });
  return found == operands.end() ? nullptr : &*found;
}

const Operand* find_buffer(const std::vector<Operand>& operands, int buffer) {
  const auto found = std::ranges::find(operands, buffer, &Operand::buffer);
  return found == operands.end() ? nullptr : &*found;
}

const Operand* find_scalars(const Schedule& schedule, const std::vector<Operand>& operands,
                            BufferKind kind) {
  const auto found = std::ranges::find_if(
      operands, [&](const Operand& operand) { return schedule.is_of_kind(operand, kind); });
  return found == operands.end() ? nullptr : &*found;
}

/// The same; a violation if it is not there.
const Operand* scalars(ContentWalk& walk, const std::vector<Operand>& operands, BufferKind kind) {
  const Operand* const found = find_scalars(walk.schedule(), operands, kind);
  walk.require_that(found != nullptr, "must name the buffer '", to_string(kind), "'");
  return found;
}

/// An operation touches no other operands than these.
bool has_operands(ContentWalk& walk, const Action& action, std::size_t reads, std::size_t writes) {
  return walk.require_that(action.reads.size() == reads && action.writes.size() == writes,
                           "must read ", reads, " buffers and write ", writes, ", but names ",
                           action.reads.size(), " and ", action.writes.size());
}

bool is_disjoint(AxisSet a, AxisSet b) { return a - b == a; }

/// In place, a rank's part must lie where the others expect it; a slot has parts at its beginning.
void require_parts_in_place(ContentWalk& walk, const Action& action) {
  const Operand& to = action.writes.front();
  const ScheduleBuffer& buffer = walk.schedule().buffer(to);
  if (!buffer.is_slot() || buffer.keeps_places()) return;
  walk.require_that(find_buffer(action.reads, to.buffer) == nullptr,
                    "works in place on a slot, where ranks' parts have no place of their own");
}

/// What a reduction makes of a gradient: the sum over the action's axes.
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

/// The gradients that a pass of this layer makes, each where the action says. It may add to what
/// other layers left there for the same sample, and to nothing else: sums of several samples are
/// for reductions and casts.
void write_gradients(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  for (const FlatId& id : schedule.layers[static_cast<std::size_t>(action.layer)].gradients) {
    const auto operand = std::ranges::find_if(action.writes, [&](const Operand& candidate) {
      return candidate.unit == id.unit && schedule.role(candidate.buffer) == Role::kGradient &&
             schedule.flats(candidate) == FlatSet{id.flat};
    });
    if (!walk.require_that(operand != action.writes.end(), "must write the gradient of ",
                           walk.flats_text(id.unit, {id.flat}))) {
      return;
    }
    const int contribution = walk.contribution(id, action.layer, action.micro_step);
    const int first = walk.contribution_of_micro_step(id, action.micro_step);
    const Content& there = walk.at(operand->buffer);
    walk.require_that(!operand->adds || !there.valid || (there.open && there.begin >= first),
                      "adds to ", walk.name_of(operand->buffer),
                      ", which holds more than what layers have left in this micro-step");
    walk.require_that(
        schedule.buffer(*operand).format == schedule.reduce_dtype, "must leave the gradient in ",
        [&] { return to_string(schedule.reduce_dtype); },
        ", or contributions are rounded differently");
    walk.write(*operand, {.role = Role::kGradient,
                          .unit = id.unit,
                          .flats = {id.flat},
                          .partial = walk.gradient_axes(),
                          .begin = contribution,
                          .end = contribution + 1,
                          .open = true});
    if (walk.sums() != nullptr) walk.sums()->contribute(*operand, action);
  }
}

/// The operand for what `layer` leaves in the action's micro-step, or its gradient. A violation if
/// it is not there: "must read its input, x.h.0.m0".
const Operand* find_activation(ContentWalk& walk, const Action& action,
                               const std::vector<Operand>& operands, BufferKind kind, int layer,
                               std::string_view what) {
  const Schedule& schedule = walk.schedule();
  const auto found = std::ranges::find_if(operands, [&](const Operand& operand) {
    const ScheduleBuffer& buffer = schedule.buffer(operand);
    return buffer.kind == kind && buffer.layer == layer && buffer.micro_step == action.micro_step;
  });
  const bool there = found != operands.end();
  walk.require_that(there, "must ", what, [&] {
    return concat(kind == BufferKind::kActivation ? "x." : "d.",
                  schedule.layers[static_cast<std::size_t>(layer)].name, ".m", action.micro_step);
  });
  return there ? &*found : nullptr;
}

/// Reads the batch of the action's micro-step, if the layer does. How many operands these are; a
/// batch that is named besides is one that the rule passes over.
std::size_t read_batch(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  if (!schedule.layers[static_cast<std::size_t>(action.layer)].reads_batch) return 0;
  const auto found = std::ranges::find_if(action.reads, [&](const Operand& operand) {
    return schedule.is_of_kind(operand, BufferKind::kBatch) &&
           schedule.buffer(operand).micro_step == action.micro_step;
  });
  if (walk.require_that(found != action.reads.end(), "must read the batch of its micro-step, ",
                        [&] { return concat("batch.m", action.micro_step); })) {
    walk.read(*found);
  }
  return 1;
}

/// Whether the pass's input is the output of the layer before, an operand then.
std::size_t input_operands(const Action& action) {
  return Schedule::takes_activation(action.layer) ? 1 : 0;
}

/// Takes the output of the layer before.
void take_input(ContentWalk& walk, const Action& action) {
  if (input_operands(action) == 0) return;
  const Operand* const operand = find_activation(
      walk, action, action.reads, BufferKind::kActivation, action.layer - 1, "read its input, ");
  if (operand == nullptr) return;
  walk.require_that(walk.read(*operand).output, "reads ", walk.name_of(operand->buffer),
                    ", which was consumed already");
  Content& input = walk.at(operand->buffer);
  input.output = false;
  input.valid = input.kept;
}

bool is_last(const ContentWalk& walk, const Action& action) {
  return walk.schedule().is_last(action.layer);
}

/// Whether layers before it train, and need the gradient of its input.
bool passes_on(const ContentWalk& walk, const Action& action) {
  return action.layer > walk.schedule().first_backward_layer;
}

const ScheduleLayer& layer_of(const ContentWalk& walk, const Action& action) {
  return walk.schedule().layers[static_cast<std::size_t>(action.layer)];
}

/// Writes the gradient of the layer's input, if that is wanted.
void write_input_gradient(ContentWalk& walk, const Action& action) {
  if (!passes_on(walk, action)) return;
  const Operand* const operand =
      find_activation(walk, action, action.writes, BufferKind::kActivationGradient,
                      action.layer - 1, "write the gradient of its input, ");
  if (operand == nullptr) return;
  walk.write(*operand, {.role = Role::kActivationGradient, .output = true});
}

/// Reads what the forward of the action's layer has kept for its backward. False: a violation.
bool take_kept(ContentWalk& walk, const Action& action) {
  const Operand* const operand =
      find_activation(walk, action, action.reads, BufferKind::kActivation, action.layer, "read ");
  if (operand == nullptr) return false;
  const auto name = walk.name_of(operand->buffer);
  walk.require_that(walk.read(*operand).kept, "reads ", name,
                    ", which holds nothing for it at this point");
  Content& content = walk.at(operand->buffer);
  walk.require_that(content.place == InputPlace::kDevice, "reads ", name,
                    ", which is on its way to the host or back");
  content.weights = action.operation->parts.backward && !action.operation->parts.gradients;
  content.kept = false;
  content.valid = content.output || content.weights;
  return true;
}

/// Takes the gradient of the layer's output. False: a violation.
bool take_output_gradient(ContentWalk& walk, const Action& action) {
  const Operand* const operand = find_activation(
      walk, action, action.reads, BufferKind::kActivationGradient, action.layer, "read ");
  if (operand == nullptr) return false;
  walk.read(*operand);
  walk.at(operand->buffer).valid = false;
  return true;
}

void read_tokens(ContentWalk& walk, const Action& action) {
  if (const Operand* const tokens = scalars(walk, action.reads, BufferKind::kTokens))
    walk.read(*tokens);
}

void add_losses(ContentWalk& walk, const Action& action) {
  if (const Operand* const loss = scalars(walk, action.writes, BufferKind::kLoss)) {
    walk.require_that(loss->adds, "overwrites '", to_string(BufferKind::kLoss),
                      "'; losses are added");
    walk.write(*loss,
               {.role = Role::kScalars, .begin = action.micro_step, .end = action.micro_step + 1});
  }
}

}  // namespace

void require_complete(ContentWalk& walk, const Content& gradient) {
  walk.require_that(gradient.partial.empty(), "the gradient of ", walk.unit_name(gradient.unit),
                    " is still to be summed over ", [&] { return to_string(gradient.partial); });
  const int all = walk.all_contributions(walk.id_of(gradient));
  walk.require_that(
      gradient.begin == 0 && gradient.end == all, "the gradient of ", walk.unit_name(gradient.unit),
      " is incomplete: it holds ", [&] { return walk.contributions_text(gradient); }, " of ", all);
}

void count_tokens(ContentWalk& walk, const Action& action) {
  const Operand* const tokens = scalars(walk, action.writes, BufferKind::kTokens);
  const Operand* const loss = scalars(walk, action.writes, BufferKind::kLoss);
  const Operand* const norm = find_scalars(walk.schedule(), action.writes, BufferKind::kNorm);
  if (tokens == nullptr || loss == nullptr) return;
  if (!has_operands(walk, action, 0, norm == nullptr ? 2 : 3)) return;
  for (const Operand& operand : action.writes) {
    walk.require_that(!operand.adds, "adds to ", walk.name_of(operand.buffer));
    walk.write(operand, {.role = Role::kScalars});
  }
}

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
                            part.sharded == content.sharded && part.role == Role::kParameter &&
                            !part.flats.overlaps(content.flats),
                        "gathers parts of different things: ",
                        walk.name_of(action.reads.front().buffer), " and ", name);
    }
    walk.require_that(part.role == Role::kParameter || part.role == Role::kGradient, name,
                      " holds neither parameters nor gradients");
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

void forward(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  if (!walk.require_that(!is_last(walk, action),
                         "the last layer makes losses: its pass is 'loss' or 'forward-loss'")) {
    return;
  }
  const std::size_t parameters =
      walk.read_parameters(action, layer_of(walk, action).forward_reads) + read_batch(walk, action);
  take_input(walk, action);
  const Operand* const output = find_activation(
      walk, action, action.writes, BufferKind::kActivation, action.layer, "write its output, ");
  if (output == nullptr) return;
  has_operands(walk, action, parameters + input_operands(action), 1);
  const bool kept =
      schedule.purpose == Purpose::kTrain && action.layer >= schedule.first_backward_layer;
  walk.write(*output, {.role = Role::kActivation, .output = true, .kept = kept});
}

/// If a backward follows, keeps what that reads; a loss may compute its gradient while its input is
/// at hand, which takes the number of tokens.
void forward_loss(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(is_last(walk, action), "only the last layer makes losses")) return;
  const Operand* const kept = walk.schedule().find(action.writes, BufferKind::kActivation);
  const std::size_t parameters =
      walk.read_parameters(action, layer_of(walk, action).forward_reads) + read_batch(walk, action);
  take_input(walk, action);
  add_losses(walk, action);
  const std::size_t backward_follows = kept == nullptr ? 0 : 1;
  if (!has_operands(walk, action, parameters + input_operands(action) + backward_follows,
                    1 + backward_follows) ||
      kept == nullptr) {
    return;
  }
  read_tokens(walk, action);
  if (find_activation(walk, action, action.writes, BufferKind::kActivation, action.layer,
                      "keep what its backward reads, ") != nullptr) {
    walk.write(*kept, {.role = Role::kActivation, .kept = true});
  }
}

void loss(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(is_last(walk, action), "only the last layer makes losses")) return;
  const ScheduleLayer& layer = walk.schedule().layers[static_cast<std::size_t>(action.layer)];
  std::vector<int> units = layer.forward_reads;
  for (const int unit : layer.backward_reads) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  const std::size_t parameters = walk.read_parameters(action, units) + read_batch(walk, action);
  take_input(walk, action);
  read_tokens(walk, action);
  write_gradients(walk, action);
  write_input_gradient(walk, action);
  add_losses(walk, action);
  has_operands(walk, action, parameters + 1 + input_operands(action),
               layer.gradients.size() + 1 + (passes_on(walk, action) ? 1 : 0));
}

void loss_backward(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(is_last(walk, action), "only the last layer makes losses")) return;
  const ScheduleLayer& layer = layer_of(walk, action);
  const std::size_t parameters =
      walk.read_parameters(action, layer.backward_reads) + read_batch(walk, action);
  if (!take_kept(walk, action)) return;
  read_tokens(walk, action);
  write_gradients(walk, action);
  write_input_gradient(walk, action);
  has_operands(walk, action, parameters + 2,
               layer.gradients.size() + (passes_on(walk, action) ? 1 : 0));
}

void backward(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(!is_last(walk, action),
                         "the last layer's backward is part of its loss, or 'loss-backward'")) {
    return;
  }
  const ScheduleLayer& layer = layer_of(walk, action);
  const std::size_t parameters =
      walk.read_parameters(action, layer.backward_reads) + read_batch(walk, action);
  if (!take_kept(walk, action) || !take_output_gradient(walk, action)) return;
  write_gradients(walk, action);
  write_input_gradient(walk, action);
  has_operands(walk, action, parameters + 2,
               layer.gradients.size() + (passes_on(walk, action) ? 1 : 0));
}

void backward_input(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(!is_last(walk, action),
                         "the last layer's backward is part of its loss, or 'loss-backward'")) {
    return;
  }
  const std::size_t parameters =
      walk.read_parameters(action, layer_of(walk, action).backward_reads) +
      read_batch(walk, action);
  if (!take_kept(walk, action) || !take_output_gradient(walk, action)) return;
  write_input_gradient(walk, action);
  has_operands(walk, action, parameters + 2, passes_on(walk, action) ? 1 : 0);
}

/// Reads no parameters: what backward-input has kept is all that it needs.
void backward_weight(ContentWalk& walk, const Action& action) {
  const Operand* const operand =
      find_activation(walk, action, action.reads, BufferKind::kActivation, action.layer, "read ");
  if (operand == nullptr) return;
  walk.require_that(walk.read(*operand).weights, "reads ", walk.name_of(operand->buffer),
                    ", of which no backward-input has kept anything");
  Content& content = walk.at(operand->buffer);
  content.weights = false;
  content.valid = content.output || content.kept;
  write_gradients(walk, action);
  has_operands(walk, action, 1 + read_batch(walk, action), layer_of(walk, action).gradients.size());
}

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

namespace {

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

void norm_partial(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 1, 1)) return;
  const Content gradient = walk.read(action.reads.front());
  if (!walk.require_that(gradient.valid && gradient.role == Role::kGradient && gradient.unit >= 0,
                         walk.name_of(action.reads.front().buffer), " holds no gradient")) {
    return;
  }
  require_complete(walk, gradient);
  walk.require_that(
      gradient.sharded == walk.gradient_axes(), "ranks must read different parts of ",
      walk.unit_name(gradient.unit), ", sharded over ",
      [&] { return to_string(walk.gradient_axes()); },
      ", or elements count more than once in the norm");
  walk.require_mirrors_added(walk.id_of(gradient));
  bool& is_normed = walk.is_normed(walk.id_of(gradient));
  walk.require_that(!is_normed, "the norm of ", walk.unit_name(gradient.unit),
                    " has been taken already");
  is_normed = true;
  const Operand* const norm = scalars(walk, action.writes, BufferKind::kNorm);
  if (norm == nullptr) return;
  walk.require_that(norm->adds, "overwrites '", to_string(BufferKind::kNorm),
                    "'; squared norms are added");
  walk.write(*norm, {.role = Role::kScalars});
}

void results(ContentWalk& walk, const Action& action) {
  const Operand* const tokens = scalars(walk, action.reads, BufferKind::kTokens);
  const Operand* const loss = scalars(walk, action.reads, BufferKind::kLoss);
  const Operand* const to = scalars(walk, action.writes, BufferKind::kResults);
  if (tokens == nullptr || loss == nullptr || to == nullptr) return;
  const Operand* const norms = find_scalars(walk.schedule(), action.reads, BufferKind::kNorm);
  if (!has_operands(walk, action, norms == nullptr ? 2 : 3, 1)) return;
  walk.read(*tokens);
  const Content losses = walk.read(*loss);
  const bool has_losses =
      walk.schedule().is_here(static_cast<int>(walk.schedule().layers.size()) - 1);
  const int expected = has_losses ? walk.schedule().micro_steps : 0;
  walk.require_that(losses.begin == 0 && losses.end == expected, "'", to_string(BufferKind::kLoss),
                    "' holds the losses of ", losses.end, " of ", expected, " micro-steps");
  if (norms != nullptr) {
    walk.read(*norms);
    for (int u = 0; u < static_cast<int>(walk.schedule().units.size()); ++u) {
      const auto flats = walk.schedule().units[static_cast<std::size_t>(u)].flats.size();
      for (int f = 0; f < static_cast<int>(flats); ++f) {
        walk.require_that(
            !walk.is_trained({u, f}) || walk.is_normed({u, f}),
            walk.schedule().units[static_cast<std::size_t>(u)].mirrors < 0
                ? "the norm of "
                : "the gradient for another unit of ",
            [&] { return walk.flats_text(u, {f}); }, " has not been taken");
      }
    }
  }
  walk.write(*to, {.role = Role::kScalars, .kept = norms != nullptr});
  walk.at(loss->buffer).valid = false;  // sums become those of all ranks
  if (norms != nullptr) walk.at(norms->buffer).valid = false;
}

/// The operand that is a slot with what `buffer` has on disk; null: there is none.
const Operand* find_copy(ContentWalk& walk, const std::vector<Operand>& operands, int buffer) {
  const Schedule& schedule = walk.schedule();
  const auto found = std::ranges::find_if(operands, [&](const Operand& operand) {
    return schedule.is_of_kind(operand, BufferKind::kStateSlot) && walk.at(operand.buffer).valid &&
           walk.at(operand.buffer).origin == buffer;
  });
  return found == operands.end() ? nullptr : &*found;
}

namespace {

/// The scalars that the optimizer is given are those of the results, or those that the step begins
/// with, as the policy says. False: they are not named.
bool reads_scalars(ContentWalk& walk, const Action& action) {
  const bool waits = walk.schedule().updates_wait_for_norm;
  const Operand* const given =
      scalars(walk, action.reads, waits ? BufferKind::kResults : BufferKind::kTokens);
  if (given == nullptr) return false;
  const Content content = walk.read(*given);
  if (waits) {
    walk.require_that(content.kept, "'", to_string(BufferKind::kResults),
                      "' has no clip factor: the results were made without '",
                      to_string(BufferKind::kNorm), "'");
  } else {
    walk.require_that(find_scalars(walk.schedule(), action.reads, BufferKind::kResults) == nullptr,
                      "reads '", to_string(BufferKind::kResults),
                      "', but its policy says that updates do not wait for them");
  }
  return true;
}

}  // namespace

void optimizer_step(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  const Operand* const gradient = find_role(schedule, action.reads, Role::kGradient);
  if (!reads_scalars(walk, action) ||
      !walk.require_that(gradient != nullptr, "must read a gradient")) {
    return;
  }
  const bool in_slot = schedule.is_of_kind(*gradient, BufferKind::kSumSlot);
  const Content sum = in_slot ? walk.take(*gradient) : walk.read(*gradient);
  if (!walk.require_that(sum.valid && sum.unit >= 0, "the unit has no gradient")) return;
  require_complete(walk, sum);
  const FlatId id = walk.id_of(sum);
  const bool has_master = std::ranges::any_of(
      walk.state_of(id), [&](int buffer) { return schedule.role(buffer) == Role::kMaster; });
  walk.require_that(schedule.buffer(*gradient).format == DType::kFloat32,
                    "the gradient is not in fp32");
  if (walk.sums() != nullptr) walk.sums()->use(*gradient);
  const auto tier_of = [&](int buffer) {
    return schedule.buffers[static_cast<std::size_t>(buffer)].tier;
  };
  std::size_t before = 0;  // the handler takes the optimizer's tensors as they come
  for (const int buffer : walk.state_of(id)) {
    const Role role = schedule.role(buffer);
    const auto name = walk.name_of(buffer);
    const bool on_disk = tier_of(buffer) == Tier::kDisk;
    // What is in other memory follows by copies.
    const bool is_here = on_disk || tier_of(buffer) == schedule.buffer(*gradient).tier;
    if (!is_here) continue;
    const Operand* const from =
        on_disk ? find_copy(walk, action.reads, buffer) : find_buffer(action.reads, buffer);
    if (on_disk && !walk.require_that(from != nullptr, "must read a copy of ", name)) return;
    const Operand* const to = find_buffer(action.writes, on_disk ? from->buffer : buffer);
    if (!walk.require_that(to != nullptr, "must write ", name)) return;
    const auto place = static_cast<std::size_t>(to - action.writes.data()) + 1;
    walk.require_that(place > before, "must write the state of ", walk.unit_name(sum.unit),
                      " in the order of the buffers");
    before = place;
    if (role != Role::kParameter || !has_master || on_disk) {
      if (!walk.require_that(from != nullptr, "must read ", name)) return;
      const Content state = on_disk ? walk.take(*from) : walk.read(*from);
      walk.require_that(state.unit == sum.unit && state.sharded == sum.sharded,
                        "reads other parts of ", name, " than of the gradient");
    }
    Content state = walk.at(on_disk ? from->buffer : buffer);
    state.valid = true;
    walk.require_that(state.version == 0, name, " was updated already");
    walk.require_that(cuts_further(walk.nesting(), state.sharded, sum.sharded),
                      "the gradient is not a part of what ", name, " holds");
    walk.require_that(role == Role::kParameter || state.sharded == sum.sharded,
                      "updates only a part of ", name);
    state.sharded = sum.sharded;
    state.version = 1;
    walk.write(*to, state);
  }
}

}  // namespace tessera::rules
