#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "passes/pass_tools.h"
#include "tessera/core/error.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/sharding/passes.h"
#include "tessera/sharding/state_buffers.h"

// [Note: order]
//
// A micro-step passes forward through the layers of each stage, the last layer's forward and
// backward in one, and backward through the others in reverse. In which order micro-steps pass
// through the stages of this pipeline rank, and where messages to and from other ranks stand among
// these passes, is said by pipeline.h. A unit's gradient of a micro-step is written by the layers
// that share it, one after the other, and added to the sum of the step after the last of them.
namespace tessera {
namespace {

/// The state of one rank that keeps everything on the device.
StateOptions whole_state(const Schedule& schedule) {
  StateOptions options = on_device(schedule.state());
  options.placement = {};
  return options;
}

/// The passes of this pipeline rank, in its order.
std::vector<StageEvent> stage_events(const Schedule& schedule) {
  const PipelineOptions& pipeline = schedule.pipeline;
  const PipelineShape shape = pipeline_shape(schedule);
  return with_messages(pipeline_passes(pipeline, shape), shape,
                       pipeline.prefetch)[static_cast<std::size_t>(pipeline.rank)];
}

class Order {
 public:
  explicit Order(Schedule& schedule)
      : schedule_(schedule),
        trains_(schedule.purpose == Purpose::kTrain),
        flats_(schedule.units.size()),
        sums_(per_flat(schedule.units, -1)),
        writers_(per_flat(schedule.units, -1)) {}

  void run();

 private:
  /// The gradient of a flat parameter in a micro-step, to which layers have yet to contribute.
  struct Gradient {
    FlatId flat;
    int micro_step;
    int buffer;
  };
  /// A layer and a micro-step.
  using Place = std::pair<int, int>;

  void list_flats();
  void add_sums();
  int add_scalars(BufferKind kind, DType format, std::int64_t numel);
  Operand add_activation(BufferKind kind, int layer, int micro_step);
  void forward(const StagePass& stage);
  void backward(const StagePass& stage);
  void backward_weight(const StagePass& stage);
  /// Whether gradients of a layer's weights can be a pass of their own.
  bool has_weight_pass(int l) const {
    return !schedule_.is_last(l) && layer(l).splits_backward && !layer(l).gradients.empty();
  }
  void message(const StageEvent& event);
  void pack(BufferKind kind, int layer, int micro_step);
  void unpack(BufferKind kind, int layer, int micro_step);
  Operand add_message(BufferKind kind, bool back, int layer, int micro_step);
  void pass(const Operation& operation, int layer, int micro_step);
  void read_parameters(Action& action, const std::vector<int>& units) const;
  void write_gradients(Action& action);
  void add_up_gradients(int layer, int micro_step);
  static int& at(PerFlat<int>& all, const FlatId& id) {
    return all[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)];
  }
  Operand gradient(int buffer, const FlatId& id, bool adds) const {
    Operand operand{.buffer = buffer, .unit = id.unit, .adds = adds};
    schedule_.set_flats(operand, {id.flat});
    return operand;
  }
  const ScheduleLayer& layer(int index) const {
    return schedule_.layers[static_cast<std::size_t>(index)];
  }

  Schedule& schedule_;
  const bool trains_;
  std::vector<std::vector<int>> flats_;  ///< by unit: buffers of its parameters
  PerFlat<int> sums_;                    ///< the buffer of its gradient
  PerFlat<int> writers_;                 ///< the layer whose backward is the last to add to it
  std::vector<Gradient> open_;           ///< in order of first write
  std::map<Place, Operand> outputs_;     ///< where a layer's forward has left something
  std::map<Place, Operand> output_gradients_;  ///< of the layer's output
  std::map<Place, Operand> sent_, sent_back_;  ///< the same two, as messages
  std::vector<int> batches_;                   ///< by micro-step
  Operand tokens_, losses_;
};

void Order::list_flats() {
  for (const bool quantized : {true, false}) {  // as passes name them
    for (int b = 0; b < static_cast<int>(schedule_.buffers.size()); ++b) {
      const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(b)];
      if (is_flat_parameter(buffer) &&
          schedule_.flat(buffer.unit, buffer.flat).is_quantized() == quantized) {
        flats_[static_cast<std::size_t>(buffer.unit)].push_back(b);
      }
    }
  }
}

void Order::add_sums() {
  for (int l = static_cast<int>(schedule_.layers.size()) - 1; l >= 0; --l) {
    for (const FlatId& id : layer(l).gradients) at(writers_, id) = l;
  }
  for (int u = 0; u < static_cast<int>(schedule_.units.size()); ++u) {
    const ScheduleUnit& unit = schedule_.units[static_cast<std::size_t>(u)];
    for (int f = 0; f < static_cast<int>(unit.flats.size()); ++f) {
      const ScheduleFlat& flat = unit.flats[static_cast<std::size_t>(f)];
      if (!flat.trainable || !schedule_.is_here(unit)) continue;
      at(sums_, {u, f}) = add_buffer(schedule_, {.name = name_beside(unit, flat, "gradient"),
                                                 .kind = BufferKind::kGradient,
                                                 .role = Role::kGradient,
                                                 .unit = u,
                                                 .flat = f,
                                                 .numel = flat.numel});
    }
  }
}

int Order::add_scalars(BufferKind kind, DType format, std::int64_t numel) {
  return add_buffer(
      schedule_,
      {.name = std::string(to_string(kind)), .kind = kind, .format = format, .numel = numel});
}

Operand Order::add_activation(BufferKind kind, int l, int micro_step) {
  const bool gradient = kind == BufferKind::kActivationGradient;
  return {.buffer = add_buffer(
              schedule_, {.name = concat(gradient ? "d." : "x.", layer(l).name, ".m", micro_step),
                          .kind = kind,
                          .role = gradient ? Role::kActivationGradient : Role::kActivation,
                          .layer = l,
                          .micro_step = micro_step,
                          .format = schedule_.parameter_dtype})};
}

void Order::read_parameters(Action& action, const std::vector<int>& units) const {
  for (const int unit : units) {
    for (const int flat : flats_[static_cast<std::size_t>(unit)]) {
      action.reads.push_back({.buffer = flat, .unit = unit});
    }
  }
}

void Order::write_gradients(Action& action) {
  for (const FlatId& id : layer(action.layer).gradients) {
    const auto known = std::ranges::find_if(open_, [&](const Gradient& gradient) {
      return gradient.flat == id && gradient.micro_step == action.micro_step;
    });
    if (known != open_.end()) {
      action.writes.push_back(gradient(known->buffer, id, true));
      continue;
    }
    const ScheduleUnit& unit = schedule_.units[static_cast<std::size_t>(id.unit)];
    const ScheduleFlat& flat = schedule_.flat(id);
    const int buffer =
        add_buffer(schedule_, {.name = name_beside(unit, flat, concat('g', action.micro_step)),
                               .kind = BufferKind::kWholeSlot,
                               .role = Role::kGradient,
                               .micro_step = action.micro_step,
                               .format = schedule_.reduce_dtype,
                               .numel = flat.numel});
    open_.push_back({id, action.micro_step, buffer});
    action.writes.push_back(gradient(buffer, id, false));
  }
}

/// Adds up the gradients to which no layer before this one contributes.
void Order::add_up_gradients(int l, int micro_step) {
  std::erase_if(open_, [&](const Gradient& written) {
    if (at(writers_, written.flat) != l || written.micro_step != micro_step) return false;
    const int sum = at(sums_, written.flat);
    schedule_.actions.push_back({.operation = &operations::kCast,
                                 .reads = {gradient(written.buffer, written.flat, false)},
                                 .writes = {gradient(sum, written.flat, micro_step > 0)}});
    return true;
  });
}

/// A buffer for a message between stages: of a layer's output, or of its gradient.
Operand Order::add_message(BufferKind kind, bool back, int l, int micro_step) {
  return {.buffer = add_buffer(
              schedule_, {.name = concat(kind == BufferKind::kSendSlot ? "send" : "receive",
                                         back ? ".d." : ".x.", layer(l).name, ".m", micro_step),
                          .kind = kind,
                          .role = back ? Role::kActivationGradient : Role::kActivation,
                          .micro_step = micro_step,
                          .format = schedule_.parameter_dtype,
                          .numel = schedule_.message_numel(l)})};
}

/// A pass through a layer; its operands follow from the parts of its operation, see PassParts.
void Order::pass(const Operation& operation, int l, int micro_step) {
  const PassParts& parts = operation.parts;
  const bool last = schedule_.is_last(l);
  const Place here{l, micro_step}, before{l - 1, micro_step};
  Action action{.operation = &operation, .layer = l, .micro_step = micro_step};
  std::vector<int> units = parts.forward ? layer(l).forward_reads : std::vector<int>();
  for (const int unit : parts.backward ? layer(l).backward_reads : std::vector<int>()) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  read_parameters(action, units);
  if (layer(l).reads_batch) {
    action.reads.push_back({.buffer = batches_[static_cast<std::size_t>(micro_step)]});
  }
  if (!parts.forward) {
    action.reads.push_back(outputs_.at(here));
    if (parts.backward && !last) action.reads.push_back(output_gradients_.at(here));
  } else if (Schedule::takes_activation(l)) {
    action.reads.push_back(outputs_.at(before));
  }
  if (last && trains_) action.reads.push_back(tokens_);
  if (parts.gradients) write_gradients(action);
  if (parts.backward && l > schedule_.first_backward_layer) {
    output_gradients_[before] = add_activation(BufferKind::kActivationGradient, l - 1, micro_step);
    action.writes.push_back(output_gradients_[before]);
  }
  if (parts.forward && !parts.backward && (!last || trains_)) {
    outputs_[here] = add_activation(BufferKind::kActivation, l, micro_step);
    action.writes.push_back(outputs_[here]);
  }
  if (parts.losses) {
    action.writes.push_back(losses_);
    action.writes.back().adds = true;
  }
  schedule_.actions.push_back(std::move(action));
  if (parts.gradients) add_up_gradients(l, micro_step);
}

/// A loss that is forward and backward in one is part of the backward.
void Order::forward(const StagePass& stage) {
  const LayerRange range = schedule_.layers_of(stage.stage);
  if (stage.stage > 0) unpack(BufferKind::kActivation, range.begin - 1, stage.micro_step);
  for (int l = range.begin; l < range.end; ++l) {
    if (!schedule_.is_last(l)) {
      pass(operations::kForward, l, stage.micro_step);
    } else if (!trains_ || (layer(l).splits_backward && schedule_.policy.split_backward)) {
      pass(operations::kForwardLoss, l, stage.micro_step);
    }
  }
  pack(BufferKind::kActivation, range.end - 1, stage.micro_step);
}

/// The loss is in one piece: for gradients of its weights alone it would have to keep as many
/// numbers as there are logits.
void Order::backward(const StagePass& stage) {
  const LayerRange range = schedule_.layers_of(stage.stage);
  const bool splits_all = schedule_.policy.split_backward;
  const bool weights_later = stage.kind == PassKind::kBackwardInput;
  unpack(BufferKind::kActivationGradient, range.end - 1, stage.micro_step);
  for (int l = range.end - 1; l >= std::max(range.begin, schedule_.first_backward_layer); --l) {
    if (schedule_.is_last(l)) {
      const bool splits = splits_all && layer(l).splits_backward;
      pass(splits ? operations::kLossBackward : operations::kLoss, l, stage.micro_step);
      continue;
    }
    const bool splits = (splits_all || weights_later) && has_weight_pass(l);
    pass(splits ? operations::kBackwardInput : operations::kBackward, l, stage.micro_step);
    if (splits && !weights_later) pass(operations::kBackwardWeight, l, stage.micro_step);
  }
  if (range.begin > schedule_.first_backward_layer) {
    pack(BufferKind::kActivationGradient, range.begin - 1, stage.micro_step);
  }
}

void Order::backward_weight(const StagePass& stage) {
  const LayerRange range = schedule_.layers_of(stage.stage);
  for (int l = range.end - 1; l >= std::max(range.begin, schedule_.first_backward_layer); --l) {
    if (has_weight_pass(l)) pass(operations::kBackwardWeight, l, stage.micro_step);
  }
}

/// From what a layer has left, or its gradient, to a message, if another pipeline rank reads it.
void Order::pack(BufferKind kind, int l, int micro_step) {
  if (!schedule_.is_sent(l)) return;
  const Place place{l, micro_step};
  const bool back = kind == BufferKind::kActivationGradient;
  Operand& message = (back ? sent_back_ : sent_)[place];
  message = add_message(BufferKind::kSendSlot, back, l, micro_step);
  schedule_.actions.push_back({.operation = &operations::kPack,
                               .reads = {(back ? output_gradients_ : outputs_).at(place)},
                               .writes = {message}});
}

void Order::unpack(BufferKind kind, int l, int micro_step) {
  if (!schedule_.is_sent(l)) return;
  const Place place{l, micro_step};
  const bool back = kind == BufferKind::kActivationGradient;
  Operand& there = (back ? output_gradients_ : outputs_)[place];
  there = add_activation(kind, l, micro_step);
  schedule_.actions.push_back({.operation = &operations::kUnpack,
                               .reads = {(back ? sent_back_ : sent_).at(place)},
                               .writes = {there}});
}

void Order::message(const StageEvent& event) {
  const StagePass& made = event.pass;
  const LayerRange range = schedule_.layers_of(made.stage);
  const bool back = made.is_backward();
  const int l = back ? range.begin - 1 : range.end - 1;
  const bool sends = event.kind == StageEvent::Kind::kSend;
  Operand& slot = (back ? sent_back_ : sent_)[{l, made.micro_step}];
  Action action{.operation = sends ? &operations::kSend : &operations::kReceive,
                .lane = back ? Lane::kSendBack : Lane::kSend,
                .layer = l,
                .micro_step = made.micro_step,
                .peer = event.peer};
  if (sends) {
    action.reads.push_back(slot);
  } else {
    slot = add_message(BufferKind::kReceiveSlot, back, l, made.micro_step);
    action.lane = opposite(action.lane);
    action.writes.push_back(slot);
  }
  schedule_.actions.push_back(std::move(action));
}

void Order::run() {
  schedule_.buffers = state_buffers(schedule_.units, whole_state(schedule_));
  list_flats();
  if (trains_) add_sums();
  tokens_.buffer = add_scalars(BufferKind::kTokens, DType::kInt64, 1);
  const std::int64_t hits = trains_ ? 0 : hit_words(schedule_.layers.back().counted_classes);
  losses_.buffer = add_scalars(BufferKind::kLoss, DType::kInt64, kExactSumWords + hits);
  const Operand results{.buffer = add_scalars(BufferKind::kResults, DType::kFloat64, 2)};
  schedule_.actions.push_back({.operation = &operations::kCountTokens,
                               .lane = Lane::kReduce,
                               .writes = {tokens_, losses_}});
  for (int m = 0; m < schedule_.micro_steps; ++m) {
    batches_.push_back(add_buffer(schedule_, {.name = concat("batch.m", m),
                                              .kind = BufferKind::kBatch,
                                              .role = Role::kBatch,
                                              .micro_step = m,
                                              .format = DType::kUInt8}));
  }
  for (const StageEvent& event : stage_events(schedule_)) {
    if (event.kind != StageEvent::Kind::kPass) {
      message(event);
    } else if (event.pass.kind == PassKind::kForward) {
      forward(event.pass);
    } else if (event.pass.is_backward()) {
      backward(event.pass);
    } else {
      backward_weight(event.pass);
    }
  }
  schedule_.actions.push_back({.operation = &operations::kResults,
                               .lane = Lane::kReduce,
                               .reads = {tokens_, losses_},
                               .writes = {results}});
}

}  // namespace

Schedule order(Schedule schedule) {
  Order(schedule).run();
  return schedule;
}

}  // namespace tessera
