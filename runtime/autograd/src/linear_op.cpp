#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

constexpr const char* kOp = "linear";

void check_arguments(const Value& x, const Parameter& weight, const Parameter* bias) {
  const TensorView& w = weight.value;
  require(x.shape().rank() >= 1 && w.shape.rank() == 2 && w.shape[1] == last_dim(x.shape()),
          ErrorCode::kInvalidArgument, kOp, ": x ", to_string(x.shape()),
          " does not fit the weight ", to_string(w.shape), ", which must be (outputs, inputs)");
  check_compute_dtype(kOp, "x", x.tensor, x.dtype());
  check_compute_dtype(kOp, "weight", w, x.dtype());
  if (bias != nullptr) check_operand(kOp, "bias", bias->value, Shape{w.shape[0]}, x.dtype());
}

/// dW (O, I) [+]= dy^T x;  db (O) [+]= column sums of dy.
void parameter_gradients(Tape& tape, const TensorView& dy, const Saved& x, Parameter& weight,
                         Parameter* bias) {
  if (weight.gradient) {
    check_gradient(kOp, "weight", weight);
    const GradientTarget dw = gradient_target(weight);
    const Tensor x_tensor = x.get();
    tape.kernels().gemm({.a = dy,
                         .b = as_matrix(x_tensor),
                         .c = dw.view,
                         .bias = {},
                         .transpose_a = true,
                         .accumulate = dw.accumulate},
                        tape.stream());
    tape.charge(
        gemm_cost(dw.view.shape[0], dw.view.shape[1], dy.shape[0], dy.dtype, dw.view.dtype));
  }
  if (bias != nullptr && bias->gradient) {
    check_gradient(kOp, "bias", *bias);
    const GradientTarget db = gradient_target(*bias);
    tape.kernels().bias_gradient({.dy = dy, .db = db.view, .accumulate = db.accumulate},
                                 tape.stream());
    tape.charge(elementwise_cost(dy, 1, 1));
  }
}

}  // namespace

Value linear(Tape& tape, const Value& x, Parameter& weight, Parameter* bias) {
  check_arguments(x, weight, bias);
  const std::int64_t outputs = weight.value.shape[0];
  Tensor y = tape.activation(with_last_dim(x.shape(), outputs), x.dtype(), "linear output");
  const TensorView x2 = as_matrix(x.tensor);
  tape.kernels().gemm({.a = x2,
                       .b = weight.value,
                       .c = as_matrix(y),
                       .bias = bias == nullptr ? TensorView() : bias->value,
                       .transpose_b = true},
                      tape.stream());
  tape.charge(gemm_cost(x2.shape[0], outputs, x2.shape[1], x.dtype(), y.dtype()));

  const int x_id = x.id;
  const Shape x_shape = x.shape();
  auto backward = [x_id, x_shape, saved = Saved(x), &weight, bias](Tape& t, Tensor dy) mutable {
    const TensorView dy2 = as_matrix(dy);
    parameter_gradients(t, dy2, saved, weight, bias);
    saved = {};  // before dx needs memory
    if (x_id < 0) return;
    Tensor dx = t.activation(x_shape, dy.dtype(), "linear input gradient");
    t.kernels().gemm({.a = dy2, .b = weight.value, .c = as_matrix(dx), .bias = {}}, t.stream());
    t.charge(gemm_cost(dy2.shape[0], last_dim(x_shape), dy2.shape[1], dy.dtype(), dx.dtype()));
    t.add_gradient(x_id, std::move(dx));
  };
  return tape.output(std::move(y), std::move(backward));
}

}  // namespace tessera::ops
