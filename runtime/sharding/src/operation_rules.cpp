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
                            std::string_view name) {
  const auto found = std::ranges::find_if(operands, [&](const Operand& operand) {
    return schedule.role(operand.buffer) == Role::kScalars && schedule.buffer(operand).name == name;
  });
  return found == operands.end() ? nullptr : &*found;
}

/// The same; a violation if it is not there.
const Operand* scalars(ContentWalk& walk, const std::vector<Operand>& operands,
                       std::string_view name) {
  const Operand* const found = find_scalars(walk.schedule(), operands, name);
  walk.require_that(found != nullptr, "does not name ", name);
  return found;
}

/// One operand on each side; else a violation.
bool has_one_each(ContentWalk& walk, const Action& action) {
  return walk.require_that(action.reads.size() == 1 && action.writes.size() == 1,
                           "needs one operand to read and one to write");
}

bool formats_fit(const ContentWalk& walk, const Operand& from, const Operand& to) {
  return walk.schedule().buffer(from).format == walk.schedule().buffer(to).format;
}

/// In place, a rank's part must lie where the others expect it; a slot has parts at its beginning.
void require_parts_in_place(ContentWalk& walk, const Action& action) {
  const Operand& to = action.writes.front();
  if (!walk.schedule().buffer(to).is_slot()) return;
  walk.require_that(find_buffer(action.reads, to.buffer) == nullptr,
                    "works in place on a slot, where ranks' parts have no place of their own");
}

/// What a reduction makes of a gradient: the sum over the action's axes.
Content summed(ContentWalk& walk, const Action& action, const Operand& operand) {
  Content content = walk.take(operand);
  walk.require_that(content.role == Role::kGradient, "only gradients are reduced");
  walk.require_that(content.partial.contains(action.axes), "the gradient is ",
                    content.partial.empty()
                        ? "summed already"
                        : concat("to be summed over ", to_string(content.partial)),
                    ", not over ", to_string(action.axes));
  content.partial = content.partial - action.axes;
  content.open = false;
  return content;
}

/// The gradients that a pass of this layer makes, each where the action says. It may add to what
/// other layers left there for the same sample, and to nothing else: sums of several samples are
/// for reductions and casts.
void write_gradients(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  const ScheduleLayer& layer = schedule.layers[static_cast<std::size_t>(action.layer)];
  std::size_t found = 0;
  for (const int unit : layer.gradients) {
    for (const Operand& operand : action.writes) {
      if (operand.unit != unit || schedule.role(operand.buffer) != Role::kGradient) continue;
      ++found;
      const int contribution = walk.contribution(unit, action.layer, action.micro_step);
      const Content& there = walk.at(operand.buffer);
      walk.require_that(
          !operand.adds || (there.open && there.begin >= contribution / walk.contributions(unit) *
                                                             walk.contributions(unit)),
          "adds to ", schedule.name_of(operand.buffer),
          ", which layers have not written in this micro-step");
      walk.write(operand, {.role = Role::kGradient,
                           .unit = unit,
                           .partial = walk.all_axes(),
                           .begin = contribution,
                           .end = contribution + 1,
                           .open = true});
      if (walk.sums() != nullptr) walk.sums()->contribute(operand, action);
    }
  }
  walk.require_that(found == layer.gradients.size(), "does not write the layer's gradients");
}

/// Takes the output of the layer before.
void take_input(ContentWalk& walk, const Action& action) {
  if (action.layer == 0) return;
  const int buffer = walk.schedule().activation(action.layer - 1, action.micro_step);
  const Operand* const operand = find_buffer(action.reads, buffer);
  if (!walk.require_that(operand != nullptr, "does not read the layer's input")) return;
  walk.require_that(walk.read(*operand).output, "does not find the layer's input");
  Content& input = walk.at(buffer);
  input.output = false;
  input.valid = input.kept;
}

bool is_last(const ContentWalk& walk, const Action& action) {
  return action.layer == static_cast<int>(walk.schedule().layers.size()) - 1;
}

/// Writes the gradient of the layer's input, if that is wanted.
void write_input_gradient(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  const bool wanted = action.layer > schedule.first_backward_layer;
  const int buffer =
      wanted ? schedule.activation_gradient(action.layer - 1, action.micro_step) : -1;
  const Operand* const operand = wanted ? find_buffer(action.writes, buffer) : nullptr;
  if (operand != nullptr) {
    walk.write(*operand, {.role = Role::kActivationGradient, .output = true});
  }
  walk.require_that(!wanted || operand != nullptr, "does not write the gradient of its input");
}

void add_losses(ContentWalk& walk, const Action& action) {
  if (const Operand* const loss = scalars(walk, action.writes, kLossBuffer)) {
    walk.require_that(loss->adds, "overwrites the losses of others");
    walk.write(*loss,
               {.role = Role::kScalars, .begin = action.micro_step, .end = action.micro_step + 1});
  }
}

}  // namespace

void count_tokens(ContentWalk& walk, const Action& action) {
  for (const std::string_view name : {kTokensBuffer, kLossBuffer, kNormBuffer}) {
    const Operand* const operand = name == kNormBuffer
                                       ? find_scalars(walk.schedule(), action.writes, name)
                                       : scalars(walk, action.writes, name);
    if (operand == nullptr) continue;
    walk.require_that(!operand->adds, "adds to ", name);
    walk.write(*operand, {.role = Role::kScalars});
  }
}

void all_gather(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(!action.reads.empty() && action.writes.size() == 1,
                         "needs operands to read and one to write")) {
    return;
  }
  const Operand& to = action.writes.front();
  Content content;
  bool trainable = false, frozen = false;
  for (const Operand& operand : action.reads) {
    const Content part = walk.read(operand);
    if (&operand != &action.reads.front()) {
      walk.require_that(part.unit == content.unit && part.version == content.version &&
                            part.sharded == content.sharded,
                        "gathers parts of different things");
    }
    walk.require_that(
        part.role == Role::kParameter || part.role == Role::kFrozen || part.role == Role::kGradient,
        "gathers only parameters and gradients");
    walk.require_that(formats_fit(walk, operand, to), "gathers into another format");
    trainable = trainable || part.role == Role::kParameter;
    frozen = frozen || part.role == Role::kFrozen;
    content = part;
  }
  content.open = false;
  walk.require_that(
      content.sharded.contains(action.axes) &&
          cuts_further(walk.nesting(), content.sharded - action.axes, content.sharded),
      "what it reads is not sharded in such parts");
  content.sharded = content.sharded - action.axes;
  require_parts_in_place(walk, action);
  if (!walk.schedule().buffer(to).is_slot()) {
    walk.require_that(action.reads.size() == 1, "gathers several buffers into one");
  } else if (content.role != Role::kGradient) {
    const std::size_t flats = walk.schedule().unit_numel(content.unit, Role::kParameter) > 0 &&
                                      walk.schedule().unit_numel(content.unit, Role::kFrozen) > 0
                                  ? 2
                                  : 1;
    walk.require_that(action.reads.size() == flats && (flats == 1 || (trainable && frozen)),
                      "does not gather all of the unit's parameters");
    content.role = Role::kParameter;
  }
  walk.write(to, content);
  if (content.role == Role::kGradient) walk.carry(action.reads.front(), to);
}

void reduce_scatter(ContentWalk& walk, const Action& action) {
  if (!has_one_each(walk, action)) return;
  Content content = summed(walk, action, action.reads.front());
  const AxisSet cut = content.sharded | action.axes;
  walk.require_that((content.sharded - action.axes) == content.sharded &&
                        cuts_further(walk.nesting(), content.sharded, cut),
                    "parts of the sum would not be what ranks keep");
  content.sharded = cut;
  require_parts_in_place(walk, action);
  if (walk.sums() != nullptr) walk.sums()->reduce(action);
  walk.write(action.writes.front(), content);
}

void all_reduce(ContentWalk& walk, const Action& action) {
  if (!has_one_each(walk, action)) return;
  const Content content = summed(walk, action, action.reads.front());
  walk.require_that(
      action.reads.front().buffer == action.writes.front().buffer && !action.writes.front().adds,
      "sums in place only");
  walk.require_that((content.sharded - action.axes) == content.sharded,
                    "ranks that meet must hold the same part");
  if (walk.sums() != nullptr) walk.sums()->reduce(action);
  walk.write(action.writes.front(), content);
}

void forward(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  if (!walk.require_that(!is_last(walk, action), "the last layer makes losses")) return;
  walk.read_parameters(action,
                       schedule.layers[static_cast<std::size_t>(action.layer)].forward_reads);
  take_input(walk, action);
  const int buffer = schedule.activation(action.layer, action.micro_step);
  const Operand* const output = find_buffer(action.writes, buffer);
  if (!walk.require_that(output != nullptr, "does not write the layer's output")) return;
  const bool kept =
      schedule.purpose == Purpose::kTrain && action.layer >= schedule.first_backward_layer;
  walk.write(*output, {.role = Role::kActivation, .output = true, .kept = kept});
}

void forward_loss(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(is_last(walk, action), "only the last layer makes losses")) return;
  const auto layer = static_cast<std::size_t>(action.layer);
  walk.read_parameters(action, walk.schedule().layers[layer].forward_reads);
  take_input(walk, action);
  add_losses(walk, action);
}

void loss(ContentWalk& walk, const Action& action) {
  if (!walk.require_that(is_last(walk, action), "only the last layer makes losses")) return;
  const ScheduleLayer& layer = walk.schedule().layers[static_cast<std::size_t>(action.layer)];
  std::vector<int> units = layer.forward_reads;
  for (const int unit : layer.backward_reads) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  walk.read_parameters(action, units);
  take_input(walk, action);
  if (const Operand* const tokens = scalars(walk, action.reads, kTokensBuffer)) walk.read(*tokens);
  write_gradients(walk, action);
  write_input_gradient(walk, action);
  add_losses(walk, action);
}

void backward(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  if (!walk.require_that(!is_last(walk, action), "the last layer's backward is part of its loss")) {
    return;
  }
  const ScheduleLayer& layer = schedule.layers[static_cast<std::size_t>(action.layer)];
  walk.read_parameters(action, layer.backward_reads);
  for (const int buffer : {schedule.activation(action.layer, action.micro_step),
                           schedule.activation_gradient(action.layer, action.micro_step)}) {
    const Operand* const operand = find_buffer(action.reads, buffer);
    if (!walk.require_that(operand != nullptr, "does not read ", schedule.name_of(buffer))) return;
    walk.require_that(
        walk.read(*operand).kept || schedule.role(buffer) == Role::kActivationGradient,
        "does not find ", schedule.name_of(buffer));
    Content& content = walk.at(buffer);
    content.kept = false;
    content.valid = schedule.role(buffer) == Role::kActivation && content.output;
  }
  write_gradients(walk, action);
  write_input_gradient(walk, action);
}

void reshard(ContentWalk& walk, const Action& action) {
  for (const Operand& operand : action.writes) {
    walk.require_that(walk.schedule().buffer(operand).is_slot(), "only slots are given back");
    walk.take(operand);
  }
}

void cast(ContentWalk& walk, const Action& action) {
  if (!has_one_each(walk, action)) return;
  Content content = walk.take(action.reads.front());
  walk.require_that(content.role == Role::kGradient, "only gradients are cast");
  walk.require_that(action.reads.front().buffer != action.writes.front().buffer,
                    "casts a buffer to itself");
  content.open = false;
  walk.carry(action.reads.front(), action.writes.front());
  walk.write(action.writes.front(), content);
}

void norm_partial(ContentWalk& walk, const Action& action) {
  if (!has_one_each(walk, action)) return;
  const Content gradient = walk.read(action.reads.front());
  if (!walk.require_that(gradient.valid && gradient.role == Role::kGradient && gradient.unit >= 0,
                         "needs a gradient")) {
    return;
  }
  walk.require_that(gradient.partial.empty() && gradient.begin == 0 &&
                        gradient.end == walk.all_contributions(gradient.unit),
                    "the gradient is incomplete");
  walk.require_that(gradient.sharded == walk.all_axes(), "would count elements more than once");
  char& normed = walk.normed()[static_cast<std::size_t>(gradient.unit)];
  walk.require_that(normed == 0, "the unit's norm has been taken");
  normed = 1;
  const Operand* const norm = scalars(walk, action.writes, kNormBuffer);
  if (norm == nullptr) return;
  walk.require_that(norm->adds, "overwrites the norms of others");
  walk.write(*norm, {.role = Role::kScalars});
}

void results(ContentWalk& walk, const Action& action) {
  const Operand* const tokens = scalars(walk, action.reads, kTokensBuffer);
  const Operand* const loss = scalars(walk, action.reads, kLossBuffer);
  const Operand* const to = scalars(walk, action.writes, kResultsBuffer);
  if (tokens == nullptr || loss == nullptr || to == nullptr) return;
  walk.read(*tokens);
  const Content losses = walk.read(*loss);
  walk.require_that(losses.begin == 0 && losses.end == walk.schedule().micro_steps,
                    "the losses of some micro-steps are missing");
  const Operand* const norms = find_scalars(walk.schedule(), action.reads, kNormBuffer);
  if (norms != nullptr) {
    walk.read(*norms);
    for (int unit = 0; unit < static_cast<int>(walk.schedule().units.size()); ++unit) {
      walk.require_that(
          !walk.is_trained(unit) || walk.normed()[static_cast<std::size_t>(unit)] != 0,
          "the norm of ", walk.unit_name(unit), " has not been taken");
    }
  }
  walk.write(*to, {.role = Role::kScalars, .kept = norms != nullptr});
  walk.at(loss->buffer).valid = false;  // sums become those of all ranks
  if (norms != nullptr) walk.at(norms->buffer).valid = false;
}

void optimizer_step(ContentWalk& walk, const Action& action) {
  const Schedule& schedule = walk.schedule();
  const Operand* const gradient = find_role(schedule, action.reads, Role::kGradient);
  const Operand* const factor = scalars(walk, action.reads, kResultsBuffer);
  if (!walk.require_that(gradient != nullptr && factor != nullptr, "needs a gradient")) return;
  walk.require_that(walk.read(*factor).kept, "the clip factor is not known yet");
  const Content sum = walk.read(*gradient);
  if (!walk.require_that(sum.valid && sum.unit >= 0, "the unit has no gradient")) return;
  walk.require_that(
      sum.partial.empty() && sum.begin == 0 && sum.end == walk.all_contributions(sum.unit),
      "the gradient is incomplete");
  const bool has_master = std::ranges::any_of(
      walk.state_of(sum.unit), [&](int buffer) { return schedule.role(buffer) == Role::kMaster; });
  walk.require_that(schedule.buffer(*gradient).format == DType::kFloat32,
                    "the gradient is not in fp32");
  if (walk.sums() != nullptr) walk.sums()->use(*gradient);
  std::size_t before = 0;  // the handler takes the optimizer's tensors as they come
  for (const int buffer : walk.state_of(sum.unit)) {
    const Role role = schedule.role(buffer);
    if (role == Role::kFrozen) continue;
    const Operand* const from = find_buffer(action.reads, buffer);
    const Operand* const to = find_buffer(action.writes, buffer);
    if (!walk.require_that(to != nullptr, "leaves out ", schedule.name_of(buffer))) return;
    const auto place = static_cast<std::size_t>(to - action.writes.data()) + 1;
    walk.require_that(place > before, "names the unit's state in another order");
    before = place;
    if (role != Role::kParameter || !has_master) {
      if (!walk.require_that(from != nullptr, "does not read ", schedule.name_of(buffer))) return;
      const Content state = walk.read(*from);
      walk.require_that(state.sharded == sum.sharded, "state and gradient are not the same part");
    }
    Content state = walk.at(buffer);
    walk.require_that(state.version == 0, "the unit was updated already");
    walk.require_that(cuts_further(walk.nesting(), state.sharded, sum.sharded),
                      "the gradient is not a part of ", schedule.name_of(buffer));
    walk.require_that(role == Role::kParameter || state.sharded == sum.sharded,
                      "updates a part of ", schedule.name_of(buffer), " only");
    state.sharded = sum.sharded;
    state.version = 1;
    walk.write(*to, state);
  }
}

}  // namespace tessera::rules
