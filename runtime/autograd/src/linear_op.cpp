#include <utility>

#include "fp8_linear.h"
#include "low_rank_parts.h"

namespace tessera::ops {

Value linear(Tape& tape, const Value& x, Parameter& weight, Parameter* bias, const Value* residual,
             std::span<const LowRank> beside) {
  constexpr const char* kOp = "linear";
  check_compute_dtype(kOp, "x", x.tensor, x.dtype());
  check_linear(kOp, x.shape(), x.dtype(), weight, bias);
  if (takes_fp8(tape, weight)) {
    Value y = fp8_linear(tape, x, weight, bias, residual);
    return beside.empty() ? y : add_low_rank(tape, std::move(y), x, beside);
  }
  Tensor y =
      tape.activation(with_last_dim(x.shape(), weight.value.shape[0]), x.dtype(), "linear output");
  run_linear(tape, as_matrix(x.tensor), weight, bias, as_matrix(y),
             {.residual = checked_residual(kOp, residual, y)});
  std::vector<LowRankGroup> groups = low_rank_groups(kOp, Value{y}, x, beside);
  for (LowRankGroup& group : groups) group.run_forward(tape, x.tensor, y);

  auto backward = [x_id = x.id, residual_id = residual != nullptr ? residual->id : -1,
                   x_shape = x.shape(),
                   saved = weight.trainable || !groups.empty() ? Saved(x) : Saved(), &weight, bias,
                   groups = std::move(groups)](Tape& t, Tensor dy) mutable {
    t.add_gradient(residual_id, dy, t.gradient_extras());
    const TensorView dy2 = as_matrix(dy);
    for (LowRankGroup& group : groups) group.run_backward(kOp, t, dy, saved);
    write_linear_gradients(kOp, t, {dy, dy2, t.gradient_extras().column_sums},
                           std::exchange(saved, {}), weight, bias);
    if (x_id < 0) return;
    Tensor dx = t.activation(x_shape, dy.dtype(), "linear input gradient");
    run_input_gradient(t, dy2, weight, as_matrix(dx));
    for (LowRankGroup& group : groups) group.add_input_gradient(t, as_matrix(dx), true);
    t.add_gradient(x_id, std::move(dx));
  };
  Value output = tape.split_output(std::move(y), std::move(backward));
  want_bias_gradient(tape, output, bias);
  return output;
}

}  // namespace tessera::ops
