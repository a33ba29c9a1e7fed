#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "execution/layer_parameters.h"
#include "execution/micro_batches.h"
#include "execution/step_buffers.h"
#include "execution/step_keys.h"
#include "tessera/autograd/layer.h"
#include "tessera/sharding/executor.h"

namespace tessera {

/// The compute lane's part of a step: runs layers forward and backward on whole parameters, keeps
/// the tapes in between. Its methods run as tasks of the compute lane, in schedule order.
class LayerRunner {
 public:
  /// `keys` may be null for a schedule that does not train.
  LayerRunner(const Schedule& schedule, const ModelLayout& layout, const Model& model,
              const BatchSource& source, const MicroBatches& batches, const StepKeys* keys,
              const StepBuffers& buffers, Memory& memory, const ExecutorOptions& options,
              bool predicts);

  /// Values that the last layer has returned in a micro-step of a schedule that predicts, in fp32.
  struct Prediction {
    Shape shape;
    std::vector<float> values;
  };
  /// Once the step is finished, until the next one begins.
  const Prediction& prediction(int micro_step) const {
    return predictions_.at(static_cast<std::size_t>(micro_step));
  }
  /// How many classes targets may be of; 0 if no loss has said it. After prepare().
  std::int64_t classes() const { return classes_; }

  /// Runs the layers of a step without their kernels, which only make their plans: what a step
  /// would have to do once, or take from the device, is done and there. Host thread, before the
  /// first step; memory comes and goes as in a step.
  void prepare(const TensorView& loss_scale, const TensorView& loss_sum, const TensorView& hits,
               Stream& stream);

  // `action` is a pass of the schedule through one layer.
  void forward(const Action& action, Stream& stream);
  /// Forward of the last layer alone. Adds the micro-batch's losses to `loss_sum`, an exact sum,
  /// and, where it is not recorded, its hits to `hits` (see CrossEntropyArgs), if its loss counts
  /// any.
  void forward_loss(const Action& action, const TensorView& loss_scale, const TensorView& loss_sum,
                    const TensorView& hits, Stream& stream);
  /// Forward and backward of the last layer.
  void loss(const Action& action, const TensorView& loss_scale, const TensorView& loss_sum,
            Stream& stream);
  /// Backward of the last layer, after its forward_loss().
  void loss_backward(const Action& action, const TensorView& loss_scale, Stream& stream);
  void backward(const Action& action, Stream& stream);
  /// The two parts of backward().
  void backward_input(const Action& action, Stream& stream);
  void backward_weight(const Action& action, Stream& stream);
  /// Dequantises a unit's parameters, whole, for the layers that read them.
  void decode(const Action& action, Stream& stream) {
    parameters_.decode(action, *kernels_, stream);
  }

  /// Adds the largest magnitudes of a step to the histories.
  void roll_history(const Action& action, Stream& stream) {
    parameters_.roll_history(action, *kernels_, stream);
  }
  /// Takes the largest magnitudes in this rank's shard of a unit's matrices.
  void amax(const Action& action, Stream& stream) { parameters_.amax(action, *kernels_, stream); }
  /// Rounds this rank's shard of a unit's matrices to codes.
  void encode(const Action& action, Stream& stream) {
    parameters_.encode(action, *kernels_, stream);
  }

  /// Elements of the message that this pass makes of a layer's output, or of its gradient.
  std::int64_t message_numel(int layer) const { return message_shape(layer).numel(); }
  /// Copies what a layer has left to a slot for a message, or back.
  void pack(const Action& action, Stream& stream);
  void unpack(const Action& action, Stream& stream);

  // Inputs that layers keep for recomputation and that wait on the host meanwhile. Their memory on
  // the device comes and goes on the compute lane, so that every run takes the same.

  /// Issues the copy of one to `on_host`, or back: `activation` has been left by the layer's pass,
  /// or reserved, by the time that `stream` gets there.
  void copy_input(const Operand& activation, const TensorView& on_host, bool leaves,
                  Stream& stream);
  void release_input(const Action& action);
  void reserve_input(const Action& action);

 private:
  const Batch* batch_of(const Action& action) const;
  bool leaves_magnitudes(int layer) const;
  TapeOptions tape_options(const Action& action, bool record, const TensorView& loss_scale) const;
  std::unique_ptr<Tape> make_tape(const Action& action, const TapeOptions& options, Stream& stream);
  /// Makes a layer's input known to its tape: what flows from the layer before, or the batch's.
  Value input_of(int layer, Tape& tape, Tensor flowing) const;
  bool needs_input_gradient(int layer) const { return layer > schedule_.first_backward_layer; }
  bool recomputes(int layer) const;
  Value run_last(const Action& action, Tape& tape, Tensor flowing, const TensorView& loss_sum,
                 Stream& stream);
  /// The layer's forward. An error of its shapes names the layer.
  Value run_layer(const Action& action, Tape& tape, const Value& input,
                  std::span<Parameter> parameters);
  /// The last layer's, whose targets may be the error.
  Value run_loss(const Action& action, Tape& tape, const Value& input);
  void keep_prediction(const Action& action, const Tensor& output, Stream& stream);
  Tensor gradient_of_losses(Tape& tape, const Shape& losses, const TensorView& loss_scale,
                            Stream& stream) const;

  const Schedule& schedule_;
  const ModelLayout& layout_;
  const Model& model_;
  const MicroBatches& batches_;
  const StepKeys* keys_;
  const StepBuffers& buffers_;
  Memory& memory_;
  const ExecutorOptions& options_;
  const KernelTable* kernels_;
  const bool predicts_;
  std::vector<Prediction> predictions_;  ///< by micro-step, if it predicts
  std::int64_t classes_ = 0;
  LayerParameters parameters_;

  /// Results of a layer's forward. The next layer takes the output away; backward, the rest.
  struct Activation {
    Tensor output{};
    std::unique_ptr<Tape> tape{};
    Value recorded{};         ///< the output on the tape, without its tensor
    Shape losses{};           ///< of the last layer: of that tensor
    Tensor input{};           ///< kept for recomputation only
    GradientExtras extras{};  ///< of a gradient: beside `output`
    bool kept = false;        ///< backward, or its second part, is to come
  };
  /// Takes what the forward of the action's layer has kept, its output recorded on a tape: now, if
  /// the layer is recomputed.
  Activation take_recorded(const Action& action, const TensorView& loss_scale, Stream& stream);
  Activation take_kept(int buffer);
  /// The input of a layer that may go to the host. No lane but the copies' touches it between the
  /// layer's passes, and theirs only with the waits of the schedule.
  struct Input {
    Tensor tensor;
    Shape shape;  ///< of the tensor, while it is away
    DType dtype = DType::kFloat32;
  };
  Input& input(int activation);
  /// Takes what a buffer of activations or their gradients holds.
  Tensor take(int buffer);
  /// A gradient of an activation, with what kernels have left beside it.
  struct Gradient {
    Tensor sum{};
    GradientExtras extras{};
  };
  Gradient take_gradient(const Action& action);
  /// Runs a tape backward from its output, and hands on the gradient of the layer's input.
  void run_backward(const Action& action, Tape& tape, const Value& output, Gradient gradient);
  /// Whether the layer before, which is recorded already, reads the column sums of its gradient.
  bool wants_column_sums(const Action& action) const;
  Tensor take_input(const Action& action);
  Shape message_shape(int layer) const;
  TensorView message(const Operand& slot, int layer) const;

  std::vector<Shape> input_shapes_;                  ///< by layer, with several pipeline ranks
  std::unordered_map<int, Activation> activations_;  ///< by buffer, gradients of them included
  std::vector<char> waits_on_host_;                  ///< by layer
  std::vector<Input> inputs_;                        ///< by micro-step and layer, if any waits
  std::vector<Tensor> kept_;  ///< by layer; see Layer::kept_numel. Empty of a schedule that trains
};

}  // namespace tessera
