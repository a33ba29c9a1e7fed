#pragma once

#include "op_support.h"

// Parts that linear and mlp share: the matmuls of a linear layer, with their costs.
namespace tessera::ops {

/// Throws unless weight (O, I) and bias (O) fit an input of shape (..., I) and this dtype.
void check_linear(const char* op, const Shape& x, DType dtype, const Parameter& weight,
                  const Parameter* bias);

/// Additions to the matmul of run_linear.
struct LinearExtras {
  TensorView residual{};    // (rows, O); optional: added
  bool gelu = false;        ///< y = gelu(...), without a residual
  TensorView gelu_input{};  // (rows, O); optional: receives what GELU was taken of
};
/// y (rows, O) = x (rows, I) weight^T + bias.
void run_linear(Tape& tape, const TensorView& x, const Parameter& weight, const Parameter* bias,
                const TensorView& y, const LinearExtras& extras = {});

/// Throws unless a residual, if there is one, has the shape and dtype of y. Gives its view as a
/// matrix.
TensorView checked_residual(const char* op, const Value* residual, const Tensor& y);

/// dx (rows, I) = dy (rows, O) weight, times gelu'(gelu_input) (rows, I) if that is given.
void run_input_gradient(Tape& tape, const TensorView& dy, const Parameter& weight,
                        const TensorView& dx, const TensorView& gelu_input = {});

/// The gradient of a linear layer's output, (rows, O), the tensor that it lies in, and what came
/// beside it.
struct OutputGradient {
  Tensor holder;
  TensorView dy;
  Tensor column_sums = {};
};
/// On a GPU kernels can add up the columns of a gradient that they make, which are the gradient of
/// a bias; a CPU's passes over memory would be as many.
void want_bias_gradient(Tape& tape, const Value& y, const Parameter* bias);
/// db (O) [+]= column sums of dy (rows, O), which are there or are made.
void write_bias_gradient(const char* op, Tape& tape, const TensorView& dy,
                         const Tensor& column_sums, Parameter& bias);
/// dW (O, I) [+]= dy^T x;  db (O) [+]= column sums of dy; by Tape::write_gradients. Gradients that
/// are not wanted are skipped. `op` is a literal.
void write_linear_gradients(const char* op, Tape& tape, OutputGradient dy, Saved x,
                            Parameter& weight, Parameter* bias);

}  // namespace tessera::ops
