#pragma once

#include <memory>
#include <vector>

#include "micro_batches.h"
#include "rank_state.h"
#include "tessera/autograd/layer.h"
#include "tessera/sharding/executor.h"

namespace tessera {

/// The compute lane's part of a step: runs layers forward and backward on whole parameters, keeps
/// the tapes in between. Its methods run as tasks of the compute lane, in schedule order.
class LayerRunner {
 public:
  LayerRunner(const Schedule& schedule, const ModelLayout& layout, const Model& model,
              const MicroBatches& batches, const RankState& state, Memory& memory,
              const ExecutorOptions& options);

  /// Runs the layers of a step without their kernels, which only make their plans: what a step
  /// would have to do once, or take from the device, is done and there. Host thread, before the
  /// first step; memory comes and goes as in a step.
  void prepare(const TensorView& loss_scale, const TensorView& loss_sum, Stream& stream);
  /// True once a layer has drawn random numbers: its kernels are given other keys in each step.
  bool draws_random() const { return draws_random_; }

  /// `action` is the index of a kForward, kLoss or kBackward.
  void forward(int action, Stream& stream);
  /// Adds the micro-batch's losses to `loss_sum`, an exact sum.
  void loss(int action, const TensorView& loss_scale, const TensorView& loss_sum, Stream& stream);
  void backward(int action, Stream& stream);

 private:
  /// What a compute action finds where: fixed by the schedule.
  struct Binding {
    std::vector<int> parameter_slots;  ///< per parameter of the layer; -1: the parameter buffer
    std::vector<int> gradients_begin;  ///< units whose gradient of this micro-step starts here
    std::vector<int> gradients_end;    ///< ... is complete after this
  };

  void plan_bindings();
  /// Points the layer's parameters (and gradients) to where they are during `action`.
  std::span<Parameter> bind(int action, bool gradients);
  void begin_gradients(int action, Stream& stream);
  void end_gradients(int action, Stream& stream);
  TensorView gradient_of(int unit, int micro_step) const;
  std::unique_ptr<Tape> make_tape(const Action& action, bool record, const TensorView& loss_scale,
                                  Stream& stream);
  /// Makes a layer's input known to its tape: what flows from the layer before, or the batch's.
  Value input_of(int layer, Tape& tape, Tensor flowing) const;
  bool needs_input_gradient(int layer) const { return layer > schedule_.first_backward_layer; }
  bool recomputes(int layer) const;
  const Action& action(int index) const {
    return schedule_.actions[static_cast<std::size_t>(index)];
  }

  const Schedule& schedule_;
  const ModelLayout& layout_;
  const Model& model_;
  const MicroBatches& batches_;
  const RankState& state_;
  Memory& memory_;
  const ExecutorOptions& options_;
  const KernelTable* kernels_;
  bool draws_random_ = false;

  // Fixed by the schedule.
  std::vector<Binding> bindings_;    ///< by action
  std::vector<int> gradient_slots_;  ///< by micro-step and unit; -1: the buffer

  /// What a layer's forward leaves for its backward, which takes it away.
  struct Kept {
    std::unique_ptr<Tape> tape;
    Value output;  ///< without its tensor
    Tensor input;  ///< kept for recomputation only
  };

  // Of the micro-step that runs. They follow one another, so one of each is enough.
  std::vector<std::vector<Parameter>> parameters_;  ///< by layer; see bind
  std::vector<std::vector<char>> written_;          ///< gradients, by unit and trainable tensor
  std::vector<Kept> kept_;                          ///< by layer
  Tensor flowing_;  ///< activation on the way forward, its gradient on the way back
};

}  // namespace tessera
