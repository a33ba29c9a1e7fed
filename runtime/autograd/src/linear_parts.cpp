#include "linear_parts.h"

#include <utility>

namespace tessera::ops {

void check_linear(const char* op, const Shape& x, DType dtype, const Parameter& weight,
                  const Parameter* bias) {
  const TensorView& w = weight.value;
  require(x.rank() >= 1 && w.shape.rank() == 2 && w.shape[1] == last_dim(x),
          ErrorCode::kInvalidArgument, op, ": x ", x, " does not fit the weight ", w.shape,
          ", which must be (outputs, inputs)");
  check_compute_dtype(op, "weight", w, dtype);
  if (bias != nullptr) check_operand(op, "bias", bias->value, Shape{w.shape[0]}, dtype);
}

void run_linear(Tape& tape, const TensorView& x, const Parameter& weight, const Parameter* bias,
                const TensorView& y, const LinearExtras& extras) {
  tape.kernels().gemm({.a = x,
                       .b = weight.value,
                       .c = y,
                       .bias = bias == nullptr ? TensorView() : bias->value,
                       .transpose_b = true,
                       .residual = extras.residual,
                       .gelu = extras.gelu,
                       .gelu_input = extras.gelu_input},
                      tape.stream());
  tape.charge(gemm_cost(x.shape[0], y.shape[1], x.shape[1], x.dtype, y.dtype));
  if (extras.residual) tape.charge(elementwise_cost(y, 1, 1));
  if (extras.gelu) tape.charge(gelu_cost(y));
}

TensorView checked_residual(const char* op, const Value* residual, const Tensor& y) {
  if (residual == nullptr) return {};
  check_operand(op, "residual", residual->tensor, y.shape(), y.dtype());
  return as_matrix(residual->tensor);
}

void run_input_gradient(Tape& tape, const TensorView& dy, const Parameter& weight,
                        const TensorView& dx, const TensorView& gelu_input) {
  tape.kernels().gemm({.a = dy, .b = weight.value, .c = dx, .gelu_backward_input = gelu_input},
                      tape.stream());
  tape.charge(gemm_cost(dy.shape[0], dx.shape[1], dy.shape[1], dy.dtype, dx.dtype));
  if (gelu_input) tape.charge(gelu_backward_cost(dx));
}

void want_bias_gradient(Tape& tape, const Value& y, const Parameter* bias) {
  const bool wants = bias != nullptr && bias->trainable && y.dtype() != DType::kFloat32;
  if (wants && tape.options().device == DeviceKind::kCuda) tape.want_column_sums(y);
}

void write_bias_gradient(const char* op, Tape& tape, const TensorView& dy,
                         const Tensor& column_sums, Parameter& bias) {
  if (column_sums) return write_sums(tape, op, "bias", column_sums, bias);
  if (!bias.gradient) return;
  check_gradient(op, "bias", bias);
  const GradientTarget db = gradient_target(bias);
  tape.kernels().bias_gradient({.dy = dy, .db = db.view, .accumulate = db.accumulate},
                               tape.stream());
  tape.charge(elementwise_cost(dy, 1, 1));
}

namespace {

void run_parameter_gradients(const char* op, Tape& tape, const OutputGradient& gradient,
                             const Saved& x, Parameter& weight, Parameter* bias) {
  const TensorView& dy = gradient.dy;
  if (bias != nullptr) write_bias_gradient(op, tape, dy, gradient.column_sums, *bias);
  if (!weight.gradient) return;
  check_gradient(op, "weight", weight);
  const GradientTarget dw = gradient_target(weight);
  const Tensor x_tensor = x.get();
  tape.kernels().gemm({.a = dy,
                       .b = as_matrix(x_tensor),
                       .c = dw.view,
                       .transpose_a = true,
                       .accumulate = dw.accumulate},
                      tape.stream());
  tape.charge(gemm_cost(dw.view.shape[0], dw.view.shape[1], dy.shape[0], dy.dtype, dw.view.dtype));
}

}  // namespace

void write_linear_gradients(const char* op, Tape& tape, OutputGradient dy, Saved x,
                            Parameter& weight, Parameter* bias) {
  if (!weight.trainable && (bias == nullptr || !bias->trainable)) return;
  if (tape.is_split()) x = x.computed();
  tape.write_gradients([op, dy = std::move(dy), x = std::move(x), &weight, bias](Tape& t) {
    run_parameter_gradients(op, t, dy, x, weight, bias);
  });
}

}  // namespace tessera::ops
