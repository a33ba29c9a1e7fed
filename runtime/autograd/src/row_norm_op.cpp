#include <algorithm>
#include <cmath>
#include <utility>

#include "scale_parts.h"

// DoRA does this beside LoRA: y[:, o] / |W[o] + scale * (b a)[o]|, and a bias behind it. The rows
// of W + scale * b a are made a chunk at a time: a GEMM adds to a copy of W's, and the kernel of
// the RMS norm has 1 / sqrt(mean(v^2)) of each, which is sqrt(I) / |v|.

namespace tessera::ops {
namespace {

constexpr const char* kNormOp = "divide_by_row_norms";
/// Elements of a chunk, of which there are two: 16 MiB each in bf16.
constexpr std::int64_t kNormChunk = std::int64_t{8} << 20;

/// 1 / |row| of weight + scale * b a, (O).
Tensor inverse_norms(Tape& tape, const TensorView& weight, const LowRank& p) {
  const std::int64_t outputs = weight.shape[0], inputs = weight.shape[1];
  const DType dtype = weight.dtype;
  Tensor inverse = tape.activation(Shape{outputs}, dtype, "inverse row norms");
  const std::int64_t most = std::clamp<std::int64_t>(kNormChunk / std::max<std::int64_t>(inputs, 1),
                                                     1, std::max<std::int64_t>(outputs, 1));
  const Tensor rows = tape.activation(Shape{most, inputs}, dtype, "adapted rows");
  const Tensor normed = tape.activation(Shape{most, inputs}, dtype, "normed rows");
  const Tensor ones = tape.activation(Shape{inputs}, dtype, "ones");
  const Tensor scaled = tape.activation(p.a.value.shape, dtype, "scaled factor");
  const Tensor rstd = tape.activation(Shape{most}, DType::kFloat32, "reciprocals");
  const KernelTable& kernels = tape.kernels();
  kernels.fill({.dst = ones, .value = 1.0F}, tape.stream());
  kernels.cast({.src = p.a.value, .dst = scaled, .scale = p.scale}, tape.stream());
  for (std::int64_t first = 0; first < outputs; first += most) {
    const std::int64_t count = std::min(most, outputs - first);
    const TensorView v = rows.view().narrow(0, 0, count), r = rstd.view().narrow(0, 0, count);
    kernels.cast({.src = weight.narrow(0, first, count), .dst = v}, tape.stream());
    kernels.gemm({.a = p.b.value.narrow(0, first, count), .b = scaled, .c = v, .accumulate = true},
                 tape.stream());
    kernels.layer_norm_forward(
        {.x = v, .gamma = ones, .y = normed.view().narrow(0, 0, count), .rstd = r, .epsilon = 0.0F},
        tape.stream());
    kernels.cast({.src = r,
                  .dst = inverse.view().narrow(0, first, count),
                  .scale = 1.0F / std::sqrt(static_cast<float>(inputs))},
                 tape.stream());
  }
  tape.charge(gemm_cost(outputs, inputs, scaled.shape()[0], dtype, dtype));
  tape.charge(elementwise_cost(weight, 4, 4));
  return inverse;
}

}  // namespace

Value divide_by_row_norms(Tape& tape, Value y, const TensorView& weight, const LowRank& p) {
  check_operand(kNormOp, "weight", weight, Shape{p.b.value.shape[0], p.a.value.shape[1]},
                y.dtype());
  require(p.a.value.shape[0] == p.b.value.shape[1] && p.first_column >= 0 &&
              p.first_column + weight.shape[0] <= last_dim(y.shape()),
          ErrorCode::kInvalidArgument, kNormOp, ": a ", p.a.value.shape, " and b ", p.b.value.shape,
          " do not fit columns from ", p.first_column, " of y ", y.shape());
  return scale_columns_by(tape, std::move(y), inverse_norms(tape, weight, p), p.first_column);
}

Value add_bias(Tape& tape, Value y, const Parameter& bias) {
  constexpr const char* kBiasOp = "add_bias";
  const std::int64_t rows = leading_rows(y.shape()), columns = last_dim(y.shape());
  check_operand(kBiasOp, "bias", bias.value, Shape{columns}, y.dtype());
  require(!bias.trainable, ErrorCode::kInvalidArgument, kBiasOp, ": the bias is trained");
  const Tensor ones = tape.activation(Shape{rows, 1}, y.dtype(), "ones");
  tape.kernels().fill({.dst = ones, .value = 1.0F}, tape.stream());
  tape.kernels().gemm({.a = ones,
                       .b = bias.value.reshape(Shape{1, columns}),
                       .c = as_matrix(y.tensor),
                       .accumulate = true},
                      tape.stream());
  tape.charge(elementwise_cost(y.tensor, 1, 2));
  auto backward = [y_id = y.id](Tape& t, Tensor dy) { t.add_gradient(y_id, std::move(dy)); };
  return tape.split_output(std::move(y.tensor), std::move(backward));
}

}  // namespace tessera::ops
