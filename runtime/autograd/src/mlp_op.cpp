#include <utility>

#include "fp8_linear.h"
#include "linear_parts.h"

// Two linear layers with a GELU between them, fused across their border: GELU is taken where the
// first product ends, and its derivative where the gradient of the second one's input ends.
//
//   pre (rows, H) = x W1^T + b1,  hidden = gelu(pre),  y = hidden W2^T + b2
//   d_pre = (dy W2) * gelu'(pre);  dW2 = dy^T hidden;  dW1 = d_pre^T x;  dx = d_pre W1
//
// The gradient of `hidden` itself never is in memory.

namespace tessera::ops {
namespace {

constexpr const char* kMlpOp = "mlp";

/// Tensors of the forward pass that backward reads.
struct SavedMlp {
  Saved x;
  Tensor pre;
  Saved hidden;
};

/// x and parameters to hidden; the tensor itself is returned, what backward needs goes to `saved`.
Tensor run_hidden(Tape& tape, Value x, const MlpParameters& p, SavedMlp& saved) {
  const Shape shape = with_last_dim(x.shape(), p.weight.value.shape[0]);
  const DType dtype = x.dtype();
  Tensor pre = tape.recording() ? tape.activation(shape, dtype, "GELU input") : Tensor();
  Tensor hidden = tape.activation(shape, dtype, "GELU output");
  run_linear(tape, as_matrix(x.tensor), p.weight, p.bias, as_matrix(hidden),
             {.gelu = true, .gelu_input = pre ? as_matrix(pre) : TensorView()});
  if (!tape.recording()) return hidden;
  if (p.weight.trainable) saved.x = Saved(x);
  saved.pre = pre;
  if (!p.projection_weight.trainable) return hidden;
  saved.hidden = Saved(hidden, tape.rematerialization([pre](Tape& t) {
    Tensor remade = t.activation(pre.shape(), pre.dtype(), "recomputed GELU output");
    t.kernels().gelu_forward({.x = pre, .y = remade}, t.stream());
    t.charge(gelu_cost(remade));
    return remade;
  }));
  return hidden;
}

/// Each tensor is let go of before the next one needs memory.
void run_backward(Tape& t, Tensor dy, int x_id, const Shape& x_shape, SavedMlp& saved,
                  const MlpParameters& p) {
  write_linear_gradients(kMlpOp, t, {dy, as_matrix(dy), t.gradient_extras().column_sums},
                         std::exchange(saved.hidden, {}), p.projection_weight, p.projection_bias);
  Tensor d_pre = t.activation(saved.pre.shape(), dy.dtype(), "GELU input gradient");
  run_input_gradient(t, as_matrix(dy), p.projection_weight, as_matrix(d_pre), as_matrix(saved.pre));
  dy = {};
  saved.pre = {};
  write_linear_gradients(kMlpOp, t, {d_pre, as_matrix(d_pre)}, std::exchange(saved.x, {}), p.weight,
                         p.bias);
  if (x_id < 0) return;
  Tensor dx = t.activation(x_shape, d_pre.dtype(), "MLP input gradient");
  run_input_gradient(t, as_matrix(d_pre), p.weight, as_matrix(dx));
  d_pre = {};
  t.add_gradient(x_id, std::move(dx));
}

}  // namespace

Value mlp(Tape& tape, Value x, MlpParameters p, const Value* residual) {
  const int x_id = x.id;
  const Shape x_shape = x.shape();
  const Shape hidden_shape = with_last_dim(x_shape, p.weight.value.shape[0]);
  check_compute_dtype(kMlpOp, "x", x.tensor, x.dtype());
  check_linear(kMlpOp, x_shape, x.dtype(), p.weight, p.bias);
  check_linear(kMlpOp, hidden_shape, x.dtype(), p.projection_weight, p.projection_bias);
  if (takes_fp8(tape, p.weight) || takes_fp8(tape, p.projection_weight)) {
    x = linear(tape, x, p.weight, p.bias);
    x = gelu(tape, std::move(x));
    return linear(tape, x, p.projection_weight, p.projection_bias, residual);
  }
  SavedMlp saved;
  Tensor hidden = run_hidden(tape, std::move(x), p, saved);
  Tensor y = tape.activation(with_last_dim(x_shape, p.projection_weight.value.shape[0]),
                             hidden.dtype(), "MLP output");
  run_linear(tape, as_matrix(hidden), p.projection_weight, p.projection_bias, as_matrix(y),
             {.residual = checked_residual(kMlpOp, residual, y)});
  hidden = {};
  auto backward = [x_id, residual_id = residual != nullptr ? residual->id : -1, x_shape,
                   saved = std::move(saved), p](Tape& t, Tensor dy) mutable {
    t.add_gradient(residual_id, dy, t.gradient_extras());
    run_backward(t, std::move(dy), x_id, x_shape, saved, p);
  };
  Value output = tape.split_output(std::move(y), std::move(backward));
  want_bias_gradient(tape, output, p.projection_bias);
  return output;
}

}  // namespace tessera::ops
