#include <algorithm>

#include "gradient_sums.h"
#include "operations/history_rules.h"
#include "operations/operation_rules.h"
#include "operations/rule_tools.h"

// The rules of passes through layers.
namespace tessera::rules {
namespace {

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

/// Whether a pass has so many operands, and those of the histories of its layer.
bool has_pass_operands(ContentWalk& walk, const Action& action, std::size_t reads,
                       std::size_t writes) {
  const HistoryOperands histories = observe(walk, action);
  return has_operands(walk, action, reads + histories.reads, writes + histories.writes);
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
  has_pass_operands(walk, action, parameters + input_operands(action), 1);
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
  if (!has_pass_operands(walk, action, parameters + input_operands(action) + backward_follows,
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
  has_pass_operands(walk, action, parameters + 1 + input_operands(action),
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
  has_pass_operands(walk, action, parameters + 2,
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
  has_pass_operands(walk, action, parameters + 2,
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
  has_pass_operands(walk, action, parameters + 2, passes_on(walk, action) ? 1 : 0);
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
  has_pass_operands(walk, action, 1 + read_batch(walk, action),
                    layer_of(walk, action).gradients.size());
}

}  // namespace tessera::rules
