#include "execution/layer_runner.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/planner.h"

namespace tessera {
LayerRunner::LayerRunner(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                         const BatchSource& source, const MicroBatches& batches,
                         const StepKeys* keys, const StepBuffers& buffers, Memory& memory,
                         const ExecutorOptions& options, bool predicts)
    : schedule_(schedule),
      layout_(layout),
      model_(model),
      batches_(batches),
      keys_(keys),
      buffers_(buffers),
      memory_(memory),
      options_(options),
      kernels_(options.layer_kernels != nullptr ? options.layer_kernels
                                                : &kernels_for(memory.device())),
      predicts_(predicts),
      predictions_(predicts ? static_cast<std::size_t>(schedule.micro_steps) : 0),
      parameters_(schedule, layout, buffers, options.fp8) {
  if (schedule.pipeline_ranks() > 1) {
    input_shapes_ =
        layer_input_shapes(model, layout, source, options.micro_batch, schedule.parameter_dtype);
  }
  const int layers = static_cast<int>(schedule.layers.size());
  for (int l = 0; schedule.purpose == Purpose::kEvaluate && l < layers; ++l) {
    const Layer& layer = *model.layers[static_cast<std::size_t>(l)];
    const std::int64_t numel = schedule.is_here(l) ? layer.kept_numel() : 0;
    kept_.push_back(numel == 0 ? Tensor()
                               : Tensor::empty(memory, Shape{numel}, schedule.parameter_dtype,
                                               MemoryCategory::kActivations,
                                               concat("what ", layer.name(), " keeps")));
  }
  for (int l = 0; l < layers; ++l) waits_on_host_.push_back(schedule.input_on_host(l) >= 0);
  if (std::ranges::find(waits_on_host_, char{1}) == waits_on_host_.end()) return;
  inputs_.resize(schedule.buffers.size());
}

void LayerRunner::prepare(const TensorView& loss_scale, const TensorView& loss_sum,
                          const TensorView& hits, Stream& stream) {
  const KernelTable plans = planning(*kernels_);
  const KernelTable* const real = std::exchange(kernels_, &plans);
  for (const Action& action : schedule_.actions) {
    if (action.operation == &operations::kForward) forward(action, stream);
    if (action.operation == &operations::kForwardLoss)
      forward_loss(action, loss_scale, loss_sum, hits, stream);
    if (action.operation == &operations::kLoss) loss(action, loss_scale, loss_sum, stream);
    if (action.operation == &operations::kLossBackward) loss_backward(action, loss_scale, stream);
    if (action.operation == &operations::kBackward) backward(action, stream);
    if (action.operation == &operations::kBackwardInput) backward_input(action, stream);
    if (action.operation == &operations::kBackwardWeight) backward_weight(action, stream);
    if (action.operation == &operations::kRelease) release_input(action);
    if (action.operation == &operations::kReserve) reserve_input(action);
    if (action.operation == &operations::kPack) pack(action, stream);
    if (action.operation == &operations::kUnpack) unpack(action, stream);
  }
  kernels_ = real;
}

bool LayerRunner::recomputes(int layer) const {
  return schedule_.policy.recompute == Recompute::kFull &&
         layout_.layers[static_cast<std::size_t>(layer)].backward_reads_parameters;
}

Tensor LayerRunner::take(int buffer) {
  const auto found = activations_.find(buffer);
  require(found != activations_.end(), ErrorCode::kInternal, schedule_.name_of(buffer),
          " is not there");
  Tensor tensor = std::move(found->second.output);
  if (!found->second.kept) activations_.erase(found);
  return tensor;
}

/// Takes the output of the layer before, for a forward or a loss; empty for the first layer.
Tensor LayerRunner::take_input(const Action& action) {
  const Operand* const input = schedule_.find(action.reads, BufferKind::kActivation);
  return input == nullptr ? Tensor() : take(input->buffer);
}

/// The shape of the message that this pass makes of the output of `layer`; messages are planned
/// for passes over the whole batch.
Shape LayerRunner::message_shape(int layer) const {
  const Shape& whole = input_shapes_[static_cast<std::size_t>(layer) + 1];
  const Layer* const made_by = model_.layers[static_cast<std::size_t>(layer)].get();
  require(whole.numel() == schedule_.message_numel(layer), ErrorCode::kInvalidArgument,
          "the output of layer '", made_by->name(), "' has ", whole.numel(),
          " elements, but was planned with ", schedule_.message_numel(layer),
          ": plan for the micro-batch and the model that run");
  return schedule_.purpose == Purpose::kEvaluate ? made_by->pass_shape(whole) : whole;
}

/// The slot of a message, as far as it is the output of `layer` or its gradient.
TensorView LayerRunner::message(const Operand& slot, int layer) const {
  const Shape shape = message_shape(layer);
  return buffers_.whole(slot.buffer).narrow(0, 0, shape.numel()).reshape(shape);
}

void LayerRunner::pack(const Action& action, Stream& stream) {
  const Operand& from = action.reads.front();
  const int layer = schedule_.buffer(from).layer;
  const Tensor tensor = take(from.buffer);
  const TensorView to = message(action.writes.front(), layer);
  require(tensor.shape() == to.shape && tensor.dtype() == to.dtype, ErrorCode::kInvalidArgument,
          "layer '", model_.layers[static_cast<std::size_t>(layer)]->name(), "' hands on ",
          tensor.shape(), " in ", to_string(tensor.dtype()), ", but was planned with ", to.shape,
          " in ", to_string(to.dtype));
  kernels_->cast({.src = tensor, .dst = to}, stream);
}

/// A copy, so that the slot is free for the next message while this one is used.
void LayerRunner::unpack(const Action& action, Stream& stream) {
  const Operand& to = action.writes.front();
  const TensorView from = message(action.reads.front(), schedule_.buffer(to).layer);
  Tensor tensor = Tensor::empty(memory_, from.shape, from.dtype, MemoryCategory::kActivations,
                                "message from another stage");
  kernels_->cast({.src = from, .dst = tensor}, stream);
  activations_[to.buffer].output = std::move(tensor);
}

/// The micro-batch that a pass names; null: none.
const Batch* LayerRunner::batch_of(const Action& a) const {
  const Operand* const batch = schedule_.find(a.reads, BufferKind::kBatch);
  return batch == nullptr ? nullptr : &batches_.at(schedule_.buffer(*batch).micro_step);
}

/// The CPU's kernels would read what they have written once more, as a pass does.
bool LayerRunner::leaves_magnitudes(int layer) const {
  return options_.device == DeviceKind::kCuda && schedule_.purpose == Purpose::kTrain &&
         parameters_.scales_by_magnitude(layer);
}

TapeOptions LayerRunner::tape_options(const Action& a, bool record,
                                      const TensorView& loss_scale) const {
  const std::string& name = model_.layers[static_cast<std::size_t>(a.layer)]->name();
  return {.record = record,
          .selective = schedule_.policy.recompute == Recompute::kSelective,
          .training = schedule_.purpose == Purpose::kTrain,
          .predicts = predicts_,
          .loss_scale = loss_scale,
          .random_key = keys_ != nullptr ? keys_->dropout(a.layer) : TensorView(),
          .first_sample = keys_ != nullptr ? keys_->first_sample(a.micro_step) : TensorView(),
          .loss_backward_apart = a.operation == &operations::kForwardLoss,
          .without_batch = batch_of(a) != nullptr ? std::string_view() : name,
          .samples = options_.micro_batch,
          .kept = kept_.empty() ? TensorView() : kept_[static_cast<std::size_t>(a.layer)].view(),
          .threads = options_.threads,
          .device = options_.device,
          .cuda_kernels = options_.cuda_kernels,
          .leaves_magnitudes = leaves_magnitudes(a.layer),
          .kernels = kernels_};
}

std::unique_ptr<Tape> LayerRunner::make_tape(const Action& a, const TapeOptions& options,
                                             Stream& stream) {
  const Batch* const batch = batch_of(a);
  return std::make_unique<Tape>(memory_, stream, batch != nullptr ? *batch : Batch{}, options);
}

Value LayerRunner::input_of(int layer, Tape& tape, Tensor flowing) const {
  if (Schedule::takes_activation(layer)) {
    return tape.input(std::move(flowing), needs_input_gradient(layer));
  }
  const Tensor& inputs = tape.batch().inputs;
  const DType dtype = schedule_.parameter_dtype;
  if (!is_compute_dtype(inputs.dtype()) || inputs.dtype() == dtype)
    return tape.input(inputs, false);
  Tensor converted = tape.activation(inputs.shape(), dtype, "inputs in the run's precision");
  tape.kernels().cast({.src = inputs, .dst = converted}, tape.stream());
  tape.charge({.flops = 0.0, .bytes = static_cast<double>(inputs.bytes() + converted.bytes())});
  return tape.input(std::move(converted), false);
}

void LayerRunner::forward(const Action& a, Stream& stream) {
  const auto layer = static_cast<std::size_t>(a.layer);
  const bool trains =
      schedule_.purpose == Purpose::kTrain && a.layer >= schedule_.first_backward_layer;
  const bool record = trains && !recomputes(a.layer);
  Activation kept;
  auto tape = make_tape(a, tape_options(a, record, {}), stream);
  Tensor flowing = take_input(a);
  const int buffer = schedule_.find(a.writes, BufferKind::kActivation)->buffer;
  if (trains && !record) (waits_on_host_[layer] ? input(buffer).tensor : kept.input) = flowing;
  Value value = input_of(a.layer, *tape, std::move(flowing));
  Value output = run_layer(a, *tape, value, parameters_.bind(a));
  kept.output = std::move(output.tensor);
  kept.kept = trains;
  if (record) {
    kept.tape = std::move(tape);
    kept.recorded = {.tensor = {}, .id = output.id, .remake = nullptr};
  }
  activations_.insert_or_assign(buffer, std::move(kept));
}

Value LayerRunner::run_layer(const Action& a, Tape& tape, const Value& input,
                             std::span<Parameter> parameters) {
  const Layer& layer = *model_.layers[static_cast<std::size_t>(a.layer)];
  try {
    return layer.forward(tape, input, parameters);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    std::throw_with_nested(Error(
        error.code(), concat("layer '", layer.name(), "' (", layer.type(), "): ", error.what())));
  }
}

Value LayerRunner::run_loss(const Action& a, Tape& tape, const Value& input) {
  try {
    return run_layer(a, tape, input, parameters_.bind(a));
  } catch (const Error&) {
    if (tape.classes() > 0) batches_.check_classes(a.micro_step, tape.classes());
    throw;
  }
}

void LayerRunner::keep_prediction(const Action& a, const Tensor& output, Stream& stream) {
  Prediction& kept = predictions_[static_cast<std::size_t>(a.micro_step)];
  Tensor values = output;
  if (output.dtype() != DType::kFloat32) {
    values = Tensor::empty(memory_, output.shape(), DType::kFloat32, MemoryCategory::kActivations,
                           "predictions in fp32");
    kernels_->cast({.src = output, .dst = values}, stream);
  }
  kept.shape = output.shape();
  if (memory_.device().kind() == DeviceKind::kSim) return;
  kept.values.resize(static_cast<std::size_t>(values.numel()));
  const auto bytes = static_cast<std::size_t>(values.bytes());
  if (memory_.device().kind() == DeviceKind::kCpu) {  // this is a task of the stream
    std::memcpy(kept.values.data(), values.view().data, bytes);
  } else {
    stream.copy(kept.values.data(), values.view().data, bytes);
  }
}

/// The last layer's forward; its losses are added to `loss_sum`.
Value LayerRunner::run_last(const Action& a, Tape& tape, Tensor flowing, const TensorView& loss_sum,
                            Stream& stream) {
  const Layer& layer = *model_.layers[static_cast<std::size_t>(a.layer)];
  const Value input = input_of(a.layer, tape, std::move(flowing));
  Value output = run_loss(a, tape, input);
  classes_ = tape.classes();
  if (predicts_) {
    keep_prediction(a, output.tensor, stream);
    return output;
  }
  require(output.dtype() == DType::kFloat32, ErrorCode::kInvalidArgument, "layer '", layer.name(),
          "' comes last and must return its losses in fp32, not ", to_string(output.dtype()));
  const int micro_step = schedule_.buffer(*schedule_.find(a.reads, BufferKind::kBatch)).micro_step;
  batches_.check_losses(micro_step, output.shape(), layer.name());
  kernels_->exact_sum({.x = output.tensor.view().flat(), .words = loss_sum}, stream);
  return output;
}

Tensor LayerRunner::gradient_of_losses(Tape& tape, const Shape& losses,
                                       const TensorView& loss_scale, Stream& stream) const {
  Tensor gradient = tape.activation(losses, DType::kFloat32, "gradient of the losses");
  kernels_->fill({.dst = gradient, .value = 1.0F, .factor = loss_scale}, stream);
  return gradient;
}

void LayerRunner::forward_loss(const Action& a, const TensorView& loss_scale,
                               const TensorView& loss_sum, const TensorView& hits, Stream& stream) {
  const Operand* const keeps = schedule_.find(a.writes, BufferKind::kActivation);
  const bool record = keeps != nullptr && !recomputes(a.layer);
  TapeOptions options = tape_options(a, record, record ? loss_scale : TensorView());
  if (!record) options.hits = hits;
  auto tape = make_tape(a, options, stream);
  Activation kept;
  Tensor flowing = take_input(a);
  if (keeps != nullptr && !record) kept.input = flowing;
  Value output = run_last(a, *tape, std::move(flowing), loss_sum, stream);
  if (keeps == nullptr) return;
  kept.kept = true;
  if (record) {
    kept.losses = output.shape();
    output.tensor = {};
    kept.recorded = std::move(output);
    kept.recorded.remake = nullptr;
    kept.tape = std::move(tape);
  }
  activations_.insert_or_assign(keeps->buffer, std::move(kept));
}

void LayerRunner::loss(const Action& a, const TensorView& loss_scale, const TensorView& loss_sum,
                       Stream& stream) {
  parameters_.begin_gradients(a, *kernels_, stream);
  const auto tape = make_tape(a, tape_options(a, true, loss_scale), stream);
  Value output = run_last(a, *tape, take_input(a), loss_sum, stream);
  Tensor gradient = gradient_of_losses(*tape, output.shape(), loss_scale, stream);
  output.tensor = {};
  run_backward(a, *tape, output, {.sum = std::move(gradient)});
  parameters_.end_gradients(a, *kernels_, stream);
}

LayerRunner::Activation LayerRunner::take_kept(int buffer) {
  const auto found = activations_.find(buffer);
  require(found != activations_.end(), ErrorCode::kInternal, schedule_.name_of(buffer),
          " is not there");
  Activation kept = std::move(found->second);
  activations_.erase(found);
  return kept;
}

LayerRunner::Activation LayerRunner::take_recorded(const Action& a, const TensorView& loss_scale,
                                                   Stream& stream) {
  const int buffer = schedule_.find(a.reads, BufferKind::kActivation)->buffer;
  Activation kept = take_kept(buffer);
  const std::span<Parameter> parameters = parameters_.bind(a);
  if (!recomputes(a.layer)) return kept;
  kept.tape = make_tape(a, tape_options(a, true, loss_scale), stream);
  const auto layer = static_cast<std::size_t>(a.layer);
  Tensor& from = waits_on_host_[layer] ? input(buffer).tensor : kept.input;
  const Value value = input_of(a.layer, *kept.tape, std::exchange(from, {}));
  // Forward has taken the largest magnitudes of what is computed again.
  std::vector<TensorView> maxima;
  for (Parameter& parameter : parameters) {
    maxima.push_back(parameter.maxima);
    if (parameter.fp8.forward) parameter.maxima = {};
  }
  kept.recorded = run_layer(a, *kept.tape, value, parameters);
  for (std::size_t p = 0; p < maxima.size(); ++p) parameters[p].maxima = maxima[p];
  kept.losses = kept.recorded.shape();
  kept.recorded.tensor = {};
  kept.recorded.remake = nullptr;
  return kept;
}

void LayerRunner::loss_backward(const Action& a, const TensorView& loss_scale, Stream& stream) {
  parameters_.begin_gradients(a, *kernels_, stream);
  Activation kept = take_recorded(a, loss_scale, stream);
  Tensor gradient = gradient_of_losses(*kept.tape, kept.losses, loss_scale, stream);
  run_backward(a, *kept.tape, kept.recorded, {.sum = std::move(gradient)});
  parameters_.end_gradients(a, *kernels_, stream);
}

void LayerRunner::backward(const Action& a, Stream& stream) {
  parameters_.begin_gradients(a, *kernels_, stream);
  Activation kept = take_recorded(a, {}, stream);
  run_backward(a, *kept.tape, kept.recorded, take_gradient(a));
  parameters_.end_gradients(a, *kernels_, stream);
}

void LayerRunner::backward_input(const Action& a, Stream& stream) {
  Activation kept = take_recorded(a, {}, stream);
  const Layer& layer = *model_.layers[static_cast<std::size_t>(a.layer)];
  require(layer.splits_backward() && kept.tape->can_split(), ErrorCode::kInvalidArgument,
          "the backward of layer '", layer.name(), "' cannot be two passes: ",
          layer.splits_backward()
              ? "an operation of its own is recorded by Tape::output(), which says nothing of two "
                "parts; record it by Tape::split_output(), or do not set splits_backward_"
              : "it does not set splits_backward_; plan its backward as one");
  run_backward(a, *kept.tape, kept.recorded, take_gradient(a));
  activations_.insert_or_assign(schedule_.find(a.reads, BufferKind::kActivation)->buffer,
                                Activation{.tape = std::move(kept.tape), .kept = true});
}

void LayerRunner::backward_weight(const Action& a, Stream& stream) {
  parameters_.begin_gradients(a, *kernels_, stream);
  const Activation kept = take_kept(schedule_.find(a.reads, BufferKind::kActivation)->buffer);
  parameters_.bind(a);
  kept.tape->backward_weights();
  parameters_.end_gradients(a, *kernels_, stream);
}

LayerRunner::Input& LayerRunner::input(int activation) {
  return inputs_[static_cast<std::size_t>(activation)];
}

void LayerRunner::copy_input(const Operand& activation, const TensorView& on_host, bool leaves,
                             Stream& stream) {
  const auto ends = [this, buffer = activation.buffer, on_host, leaves] {
    const Tensor& tensor = input(buffer).tensor;
    require(tensor.bytes() == on_host.bytes(), ErrorCode::kInvalidArgument,
            schedule_.name_of(buffer), " has ", tensor.bytes(), " bytes, but was planned with ",
            on_host.bytes(), ": plan for the micro-batch and the model that run");
    void* const on_device = tensor.view().data;
    return leaves ? std::pair<void*, const void*>(on_host.data, on_device)
                  : std::pair<void*, const void*>(on_device, on_host.data);
  };
  const auto bytes = static_cast<std::size_t>(on_host.bytes());
  if (memory_.device().kind() != DeviceKind::kCpu) {  // tasks before it have run, on the host
    const auto [to, from] = ends();
    return stream.copy(to, from, bytes);
  }
  stream.submit({.name = "copy"}, [ends, bytes] {
    const auto [to, from] = ends();
    std::memcpy(to, from, bytes);
  });
}

void LayerRunner::release_input(const Action& action) {
  Input& kept = input(action.writes.front().buffer);
  kept = {.tensor = {}, .shape = kept.tensor.shape(), .dtype = kept.tensor.dtype()};
}

void LayerRunner::reserve_input(const Action& action) {
  Input& kept = input(action.writes.front().buffer);
  kept.tensor = Tensor::empty(memory_, kept.shape, kept.dtype, MemoryCategory::kActivations,
                              "input from the host");
}

LayerRunner::Gradient LayerRunner::take_gradient(const Action& a) {
  const int buffer = schedule_.find(a.reads, BufferKind::kActivationGradient)->buffer;
  const auto found = activations_.find(buffer);
  Gradient gradient;
  if (found != activations_.end()) gradient.extras = std::move(found->second.extras);
  gradient.sum = take(buffer);
  return gradient;
}

bool LayerRunner::wants_column_sums(const Action& a) const {
  const Operand* const to = schedule_.find(a.writes, BufferKind::kActivationGradient);
  if (to == nullptr) return false;
  const ScheduleBuffer& gradient = schedule_.buffer(*to);
  return std::ranges::any_of(activations_, [&](const auto& entry) {
    const auto& [id, activation] = entry;
    const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(id)];
    return activation.tape != nullptr && buffer.layer == gradient.layer &&
           buffer.micro_step == gradient.micro_step &&
           activation.tape->wants_column_sums(activation.recorded.id);
  });
}

void LayerRunner::run_backward(const Action& a, Tape& tape, const Value& output,
                               Gradient gradient) {
  if (wants_column_sums(a)) tape.want_input_column_sums();
  auto& [sum, extras] = gradient;
  Tensor of_input = a.operation == &operations::kBackwardInput
                        ? tape.backward_input(output, std::move(sum), std::move(extras))
                        : tape.backward(output, std::move(sum), std::move(extras));
  if (!needs_input_gradient(a.layer)) return;
  require(static_cast<bool>(of_input), ErrorCode::kInvalidArgument, "backward of layer '",
          model_.layers[static_cast<std::size_t>(a.layer)]->name(),
          "' gave its input no gradient, and layers before it need one: an operation of your own "
          "returns what Tape::output makes, and hands gradients on by Tape::add_gradient");
  const Operand* const to = schedule_.find(a.writes, BufferKind::kActivationGradient);
  Activation& passed = activations_[to->buffer];
  passed.output = std::move(of_input);
  passed.extras = tape.take_input_extras();
}

}  // namespace tessera
