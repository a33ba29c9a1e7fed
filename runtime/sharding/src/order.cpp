#include <algorithm>
#include <utility>
#include <vector>

#include "pass_tools.h"
#include "tessera/core/error.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/sharding/passes.h"
#include "tessera/sharding/state_buffers.h"

// [Note: order]
//
// The compute lane is fixed by the model: forward of every layer, the loss layer's forward and
// backward in one, backward of the other layers in reverse; once per micro-step. A unit's gradient
// of a micro-step is written by the layers that share it, one after the other, and added to the
// sum of the step after the last of them.
namespace tessera {
namespace {

/// The state of one rank that keeps everything on the device.
StateOptions whole_state(const Schedule& schedule) {
  StateOptions options = on_device(schedule.state());
  options.placement = {};
  return options;
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
  /// The gradient of a flat parameter in the micro-step at hand.
  struct Gradient {
    FlatId flat;
    int buffer;
  };

  void list_flats();
  void add_sums();
  int add_scalars(BufferKind kind, DType format, std::int64_t numel);
  Operand add_activation(BufferKind kind, int layer, int micro_step);
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
  std::vector<Operand> outputs_;         ///< by layer, of the micro-step at hand
  Operand output_gradient_;              ///< of the layer whose backward comes next
  Operand tokens_, losses_, batch_;
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
      if (!flat.trainable) continue;
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
    const auto known = std::ranges::find(open_, id, &Gradient::flat);
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
    open_.push_back({id, buffer});
    action.writes.push_back(gradient(buffer, id, false));
  }
}

/// Those to which no layer before this one contributes.
void Order::add_up_gradients(int l, int micro_step) {
  std::erase_if(open_, [&](const Gradient& written) {
    if (at(writers_, written.flat) != l) return false;
    const int sum = at(sums_, written.flat);
    schedule_.actions.push_back({.operation = &operations::kCast,
                                 .reads = {gradient(written.buffer, written.flat, false)},
                                 .writes = {gradient(sum, written.flat, micro_step > 0)}});
    return true;
  });
}

/// A pass through a layer; its operands follow from the parts of its operation, see PassParts.
void Order::pass(const Operation& operation, int l, int micro_step) {
  const PassParts& parts = operation.parts;
  const bool last = l == static_cast<int>(schedule_.layers.size()) - 1;
  Action action{.operation = &operation, .layer = l, .micro_step = micro_step};
  std::vector<int> units = parts.forward ? layer(l).forward_reads : std::vector<int>();
  for (const int unit : parts.backward ? layer(l).backward_reads : std::vector<int>()) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  read_parameters(action, units);
  if (layer(l).reads_batch) action.reads.push_back(batch_);
  if (!parts.forward) {
    action.reads.push_back(outputs_[static_cast<std::size_t>(l)]);
    if (parts.backward && !last) action.reads.push_back(output_gradient_);
  } else if (Schedule::takes_activation(l)) {
    action.reads.push_back(outputs_.back());
  }
  if (last && trains_) action.reads.push_back(tokens_);
  if (parts.gradients) write_gradients(action);
  if (parts.backward && l > schedule_.first_backward_layer) {
    output_gradient_ = add_activation(BufferKind::kActivationGradient, l - 1, micro_step);
    action.writes.push_back(output_gradient_);
  }
  if (parts.forward && !parts.backward && (!last || trains_)) {
    outputs_.push_back(add_activation(BufferKind::kActivation, l, micro_step));
    action.writes.push_back(outputs_.back());
  }
  if (parts.losses) {
    action.writes.push_back(losses_);
    action.writes.back().adds = true;
  }
  schedule_.actions.push_back(std::move(action));
  if (parts.gradients) add_up_gradients(l, micro_step);
}

void Order::run() {
  schedule_.buffers = state_buffers(schedule_.units, whole_state(schedule_));
  list_flats();
  if (trains_) add_sums();
  tokens_.buffer = add_scalars(BufferKind::kTokens, DType::kInt64, 1);
  losses_.buffer =
      add_scalars(BufferKind::kLoss, DType::kInt64, kExactSumWords + (trains_ ? 0 : kHitWords));
  const Operand results{.buffer = add_scalars(BufferKind::kResults, DType::kFloat64, 2)};
  schedule_.actions.push_back({.operation = &operations::kCountTokens,
                               .lane = Lane::kReduce,
                               .writes = {tokens_, losses_}});
  std::vector<int> batches;
  for (int m = 0; m < schedule_.micro_steps; ++m) {
    batches.push_back(add_buffer(schedule_, {.name = concat("batch.m", m),
                                             .kind = BufferKind::kBatch,
                                             .role = Role::kBatch,
                                             .micro_step = m,
                                             .format = DType::kUInt8}));
  }
  const int last = static_cast<int>(schedule_.layers.size()) - 1;
  for (int m = 0; m < schedule_.micro_steps; ++m) {
    outputs_.clear();
    batch_.buffer = batches[static_cast<std::size_t>(m)];
    for (int l = 0; l < last; ++l) pass(operations::kForward, l, m);
    const bool loss_in_one = trains_ && !layer(last).splits_backward;
    pass(loss_in_one ? operations::kLoss : operations::kForwardLoss, last, m);
    if (trains_ && !loss_in_one) pass(operations::kLossBackward, last, m);
    for (int l = last - 1; trains_ && l >= schedule_.first_backward_layer; --l) {
      const bool in_one = !layer(l).splits_backward || layer(l).gradients.empty();
      pass(in_one ? operations::kBackward : operations::kBackwardInput, l, m);
      if (!in_one) pass(operations::kBackwardWeight, l, m);
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
