#include "layer_runner.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

bool is_layer_action(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kLoss || kind == ActionKind::kBackward;
}

}  // namespace

LayerRunner::LayerRunner(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                         const MicroBatches& batches, const RankState& state, Memory& memory,
                         const ExecutorOptions& options)
    : schedule_(schedule),
      layout_(layout),
      model_(model),
      batches_(batches),
      state_(state),
      memory_(memory),
      options_(options),
      kernels_(&kernels_for(memory.device())),
      kept_(layout.layers.size()) {
  for (const LayerLayout& layer : layout.layers) {
    parameters_.emplace_back(layer.parameters.size());
  }
  for (const Unit& unit : layout.units) written_.emplace_back(unit.trainable.tensors.size());
  plan_bindings();
}

void LayerRunner::plan_bindings() {
  const std::size_t units = schedule_.units.size();
  gradient_slots_.assign(units * static_cast<std::size_t>(schedule_.micro_steps), -1);
  for (const GradientTarget& target : schedule_.gradient_targets) {
    gradient_slots_[static_cast<std::size_t>(target.micro_step) * units +
                    static_cast<std::size_t>(target.unit)] = target.slot;
  }
  bindings_.resize(schedule_.actions.size());
  std::vector<int> slot_of_unit(schedule_.units.size(), -1);
  std::map<std::pair<int, int>, int> last_writer;  // (micro-step, unit) -> action
  for (int i = 0; i < static_cast<int>(schedule_.actions.size()); ++i) {
    const Action& a = action(i);
    if (a.kind == ActionKind::kUnshard) slot_of_unit[static_cast<std::size_t>(a.unit)] = a.slot;
    if (a.kind == ActionKind::kReshard) slot_of_unit[static_cast<std::size_t>(a.unit)] = -1;
    if (!is_layer_action(a.kind)) continue;
    const auto layer = static_cast<std::size_t>(a.layer);
    Binding& binding = bindings_[static_cast<std::size_t>(i)];
    for (const ParameterAddress& address : layout_.layers[layer].parameters) {
      binding.parameter_slots.push_back(slot_of_unit[static_cast<std::size_t>(address.unit)]);
    }
    if (a.kind == ActionKind::kForward) continue;
    for (const int unit : schedule_.layers[layer].gradients) {
      const auto [it, is_first] = last_writer.try_emplace({a.micro_step, unit}, i);
      if (is_first) binding.gradients_begin.push_back(unit);
      it->second = i;
    }
  }
  for (const auto& [key, index] : last_writer) {
    bindings_[static_cast<std::size_t>(index)].gradients_end.push_back(key.second);
  }
}

void LayerRunner::prepare(const TensorView& loss_scale, const TensorView& loss_sum,
                          Stream& stream) {
  const KernelTable plans = planning(*kernels_);
  const KernelTable* const real = std::exchange(kernels_, &plans);
  for (int i = 0; i < static_cast<int>(schedule_.actions.size()); ++i) {
    if (action(i).kind == ActionKind::kForward) forward(i, stream);
    if (action(i).kind == ActionKind::kLoss) loss(i, loss_scale, loss_sum, stream);
    if (action(i).kind == ActionKind::kBackward) backward(i, stream);
  }
  kernels_ = real;
}

bool LayerRunner::recomputes(int layer) const {
  return schedule_.recompute == Recompute::kFull &&
         layout_.layers[static_cast<std::size_t>(layer)].backward_reads_parameters;
}

TensorView LayerRunner::gradient_of(int unit, int micro_step) const {
  const int slot = gradient_slots_[static_cast<std::size_t>(micro_step) * schedule_.units.size() +
                                   static_cast<std::size_t>(unit)];
  return slot >= 0 ? state_.gradient_slot(slot, unit) : state_.gradient_buffer(unit);
}

std::span<Parameter> LayerRunner::bind(int index, bool gradients) {
  const Action& a = action(index);
  const auto layer = static_cast<std::size_t>(a.layer);
  const Binding& binding = bindings_[static_cast<std::size_t>(index)];
  std::vector<Parameter>& parameters = parameters_[layer];
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const ParameterAddress& address = layout_.layers[layer].parameters[p];
    const FlatTensor& tensor = state_.flat(address.unit, address.trainable)
                                   .tensors[static_cast<std::size_t>(address.tensor)];
    const int slot = binding.parameter_slots[p];
    const bool reads = slot >= 0 || schedule_.placement.parameter.empty();
    // A layer whose backward reads no parameters finds none: its unit may be in shards.
    parameters[p].value =
        reads ? RankState::tensor_of(
                    slot >= 0 ? state_.in_parameter_slot(slot, address.unit, address.trainable)
                              : state_.parameter_buffer(address.unit, address.trainable),
                    tensor)
              : TensorView(nullptr, schedule_.parameter_dtype, tensor.spec.shape);
    parameters[p].gradient = {};
    if (gradients && address.trainable) {
      parameters[p].gradient =
          RankState::tensor_of(gradient_of(address.unit, a.micro_step), tensor);
      parameters[p].gradient_written = written_[static_cast<std::size_t>(address.unit)]
                                               [static_cast<std::size_t>(address.tensor)] != 0;
    }
  }
  return parameters;
}

/// Slots change hands: what lies between and behind the tensors must not reach a sum.
void LayerRunner::begin_gradients(int index, Stream& stream) {
  for (const int unit : bindings_[static_cast<std::size_t>(index)].gradients_begin) {
    std::ranges::fill(written_[static_cast<std::size_t>(unit)], char{0});
    const TensorView gradient = gradient_of(unit, action(index).micro_step);
    std::int64_t end = 0;
    const auto clear_until = [&](std::int64_t begin) {
      if (begin > end) kernels_->fill({.dst = gradient.narrow(0, end, begin - end)}, stream);
    };
    for (const FlatTensor& tensor : state_.flat(unit, true).tensors) {
      clear_until(tensor.offset);
      end = tensor.offset + tensor.spec.shape.numel();
    }
    clear_until(gradient.numel());
  }
}

/// A parameter that no operation of this micro-step used has gradient zero.
void LayerRunner::end_gradients(int index, Stream& stream) {
  const Action& a = action(index);
  const auto layer = static_cast<std::size_t>(a.layer);
  for (std::size_t p = 0; p < parameters_[layer].size(); ++p) {
    const ParameterAddress& address = layout_.layers[layer].parameters[p];
    if (!address.trainable) continue;
    written_[static_cast<std::size_t>(address.unit)][static_cast<std::size_t>(address.tensor)] =
        parameters_[layer][p].gradient_written ? 1 : 0;
  }
  for (const int unit : bindings_[static_cast<std::size_t>(index)].gradients_end) {
    const auto& tensors = state_.flat(unit, true).tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (written_[static_cast<std::size_t>(unit)][t] != 0) continue;
      kernels_->fill({.dst = RankState::tensor_of(gradient_of(unit, a.micro_step), tensors[t])},
                     stream);
    }
  }
}

std::unique_ptr<Tape> LayerRunner::make_tape(const Action& a, bool record,
                                             const TensorView& loss_scale, Stream& stream) {
  return std::make_unique<Tape>(
      memory_, stream, batches_.at(a.micro_step),
      TapeOptions{.record = record,
                  .selective = schedule_.recompute == Recompute::kSelective,
                  .training = true,
                  .loss_scale = loss_scale,
                  .seed = options_.seed,
                  .layer = static_cast<std::uint64_t>(a.layer),
                  .threads = options_.threads,
                  .device = options_.device,
                  .cuda_kernels = options_.cuda_kernels,
                  .kernels = kernels_});
}

Value LayerRunner::input_of(int layer, Tape& tape, Tensor flowing) const {
  if (layer > 0) return tape.input(std::move(flowing), needs_input_gradient(layer));
  const Tensor& inputs = tape.batch().inputs;
  const DType dtype = schedule_.parameter_dtype;
  const bool floats = inputs.dtype() == DType::kFloat32 || inputs.dtype() == DType::kBFloat16;
  if (!floats || inputs.dtype() == dtype) return tape.input(inputs, false);
  Tensor converted = tape.activation(inputs.shape(), dtype, "inputs in the run's precision");
  tape.kernels().cast({.src = inputs, .dst = converted}, tape.stream());
  tape.charge({.flops = 0.0, .bytes = static_cast<double>(inputs.bytes() + converted.bytes())});
  return tape.input(std::move(converted), false);
}

void LayerRunner::forward(int index, Stream& stream) {
  const Action& a = action(index);
  const auto layer = static_cast<std::size_t>(a.layer);
  const bool trains = a.layer >= schedule_.first_backward_layer;
  const bool record = trains && !recomputes(a.layer);
  Kept& kept = kept_[layer];
  auto tape = make_tape(a, record, {}, stream);
  if (trains && !record) kept.input = flowing_;
  Value input = input_of(a.layer, *tape, std::move(flowing_));
  Value output = model_.layers[layer]->forward(*tape, input, bind(index, false));
  flowing_ = std::move(output.tensor);
  draws_random_ = draws_random_ || tape->draws_random();
  if (record) {
    kept.tape = std::move(tape);
    kept.output = {.tensor = {}, .id = output.id, .remake = nullptr};
  }
}

void LayerRunner::loss(int index, const TensorView& loss_scale, const TensorView& loss_sum,
                       Stream& stream) {
  const Action& a = action(index);
  const auto layer = static_cast<std::size_t>(a.layer);
  begin_gradients(index, stream);
  const auto tape = make_tape(a, true, loss_scale, stream);
  Tensor gradient;
  Value output;
  {
    const Value input = input_of(a.layer, *tape, std::move(flowing_));
    output = model_.layers[layer]->forward(*tape, input, bind(index, true));
    draws_random_ = draws_random_ || tape->draws_random();
  }
  require(output.dtype() == DType::kFloat32, ErrorCode::kInvalidArgument, "layer '",
          model_.layers[layer]->name(), "' comes last and must return its losses in fp32, not ",
          to_string(output.dtype()));
  kernels_->exact_sum({.x = output.tensor.view().flat(), .words = loss_sum}, stream);
  gradient = tape->activation(output.shape(), DType::kFloat32, "gradient of the losses");
  kernels_->fill({.dst = gradient, .value = 1.0F, .factor = loss_scale}, stream);
  output.tensor = {};
  flowing_ = tape->backward(output, std::move(gradient));
  end_gradients(index, stream);
}

void LayerRunner::backward(int index, Stream& stream) {
  const Action& a = action(index);
  const auto layer = static_cast<std::size_t>(a.layer);
  Kept kept = std::exchange(kept_[layer], Kept{});
  begin_gradients(index, stream);
  const std::span<Parameter> parameters = bind(index, true);
  if (recomputes(a.layer)) {
    kept.tape = make_tape(a, true, {}, stream);
    const Value input = input_of(a.layer, *kept.tape, std::move(kept.input));
    kept.output = model_.layers[layer]->forward(*kept.tape, input, parameters);
    kept.output.tensor = {};
    kept.output.remake = nullptr;
  }
  flowing_ = kept.tape->backward(kept.output, std::move(flowing_));
  end_gradients(index, stream);
}

}  // namespace tessera
