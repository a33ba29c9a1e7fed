#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

/// Statistics that the normalisation keeps beside its input.
struct Statistics {
  Tensor mean, rstd;  // (rows) fp32
};

Statistics allocate_statistics(Tape& tape, std::int64_t rows) {
  return {.mean = tape.activation(Shape{rows}, DType::kFloat32, "layer norm mean"),
          .rstd = tape.activation(Shape{rows}, DType::kFloat32, "layer norm rstd")};
}

/// Allocates those of an RMS norm, which has no mean.
Statistics allocate_rms_statistics(Tape& tape, std::int64_t rows) {
  return {.mean = {}, .rstd = tape.activation(Shape{rows}, DType::kFloat32, "RMS norm rstd")};
}

void check_arguments(const char* op, const Value& x, const Parameter& gamma,
                     const Parameter* beta) {
  require(x.shape().rank() >= 1, ErrorCode::kInvalidArgument, op, ": x is a scalar");
  check_compute_dtype(op, "x", x.tensor, x.dtype());
  const Shape channels{last_dim(x.shape())};
  check_operand(op, "gamma", gamma.value, channels, x.dtype());
  if (beta != nullptr) check_operand(op, "beta", beta->value, channels, x.dtype());
}

/// Gives the gradient of what was normalised, in the memory of dy or of the gradient that the
/// residual branch has already collected, if either is free.
struct NormBackward {
  int x_id;
  Saved x;
  Statistics statistics;
  Parameter& gamma;
  Parameter* beta;  ///< null in an RMS norm, which has no mean either
  float gamma_offset = 0.0F;

  void operator()(Tape& tape, Tensor dy) {
    Tensor collected = tape.take_gradient(x_id);
    SmallGradients sums = small_gradients(tape);
    Tensor dx;
    if (dy.use_count() != 1 && collected.use_count() == 1) {
      dx = collected;
    } else {
      dx = reuse_or_allocate(tape, dy, "layer norm input gradient");
    }
    GradientExtras extras;
    if (x_id >= 0) extras.magnitude = tape.magnitude_word(dx.dtype());
    if (tape.wants_column_sums(x_id)) {
      extras.column_sums =
          tape.activation(gamma.value.shape, DType::kFloat32, "column sums of a gradient");
    }
    run(tape, x.get(), dy, gamma.value, collected, dx, sums, extras);
    dy = {};  // now dx has its memory to itself
    collected = {};
    tape.add_gradient(x_id, std::move(dx), std::move(extras));
  }

 private:
  SmallGradients small_gradients(Tape& tape) const {
    return SmallGradients(tape, "layer_norm", {"gamma", &gamma}, {"beta", beta});
  }

  void run(Tape& tape, const Tensor& normalised, const Tensor& dy, const TensorView& gammas,
           const Tensor& collected, const Tensor& dx, SmallGradients& sums,
           const GradientExtras& extras = {}) const {
    tape.kernels().layer_norm_backward(
        {.dy = as_matrix(dy),
         .x = as_matrix(normalised),
         .mean = statistics.mean,
         .rstd = statistics.rstd,
         .gamma = gammas,
         .d_residual = collected ? as_matrix(collected) : TensorView(),
         .dx = as_matrix(dx),
         .dgamma = sums.first,
         .dbeta = sums.second,
         .accumulate_parameters = sums.accumulate,
         .gamma_offset = gamma_offset,
         .amax = extras.magnitude,
         .dx_sums = extras.column_sums},
        tape.stream());
    sums.finish(tape);
    tape.charge(elementwise_cost(dx, 14, collected ? 4 : 3));
  }
};

}  // namespace

Value layer_norm(Tape& tape, const Value& x, Parameter& gamma, Parameter& beta, float epsilon) {
  check_arguments("layer_norm", x, gamma, &beta);
  Statistics statistics = allocate_statistics(tape, leading_rows(x.shape()));
  Tensor y = tape.activation(x.shape(), x.dtype(), "layer norm output");
  Tensor magnitude = tape.magnitude_word(x.dtype());
  tape.kernels().layer_norm_forward({.x = as_matrix(x.tensor),
                                     .residual = {},
                                     .sum = {},
                                     .gamma = gamma.value,
                                     .beta = beta.value,
                                     .y = as_matrix(y),
                                     .mean = statistics.mean,
                                     .rstd = statistics.rstd,
                                     .epsilon = epsilon,
                                     .amax = magnitude},
                                    tape.stream());
  tape.charge(elementwise_cost(y, 8, 2));
  return with_magnitude(
      tape.split_output(std::move(y),
                        NormBackward{x.id, Saved(x), std::move(statistics), gamma, &beta}),
      std::move(magnitude));
}

Value rms_norm(Tape& tape, const Value& x, Parameter& gamma, float epsilon, float gamma_offset) {
  check_arguments("rms_norm", x, gamma, nullptr);
  Statistics statistics = allocate_rms_statistics(tape, leading_rows(x.shape()));
  Tensor y = tape.activation(x.shape(), x.dtype(), "RMS norm output");
  Tensor magnitude = tape.magnitude_word(x.dtype());
  tape.kernels().layer_norm_forward({.x = as_matrix(x.tensor),
                                     .gamma = gamma.value,
                                     .y = as_matrix(y),
                                     .rstd = statistics.rstd,
                                     .epsilon = epsilon,
                                     .gamma_offset = gamma_offset,
                                     .amax = magnitude},
                                    tape.stream());
  tape.charge(elementwise_cost(y, 4, 2));
  return with_magnitude(
      tape.split_output(std::move(y), NormBackward{x.id, Saved(x), std::move(statistics), gamma,
                                                   nullptr, gamma_offset}),
      std::move(magnitude));
}

namespace {

/// The sum and its normalisation: without `beta` by an RMS norm.
SumAndNorm add_norm(Tape& tape, const char* op, Value x, const Value& residual, Parameter& gamma,
                    Parameter* beta, float epsilon, float gamma_offset) {
  check_arguments(op, x, gamma, beta);
  check_operand(op, "residual", residual.tensor, x.shape(), x.dtype());
  const int ids[] = {x.id, residual.id};
  const std::int64_t rows = leading_rows(x.shape());
  Statistics statistics =
      beta != nullptr ? allocate_statistics(tape, rows) : allocate_rms_statistics(tape, rows);
  Tensor sum = reuse_or_allocate(tape, x.tensor, "residual sum");
  Tensor y = tape.activation(sum.shape(), sum.dtype(), "norm output");
  Tensor magnitude = tape.magnitude_word(y.dtype());
  tape.kernels().layer_norm_forward(
      {.x = as_matrix(x.tensor),
       .residual = as_matrix(residual.tensor),
       .sum = as_matrix(sum),
       .gamma = gamma.value,
       .beta = beta != nullptr ? beta->value : TensorView(),
       .y = as_matrix(y),
       .mean = statistics.mean ? statistics.mean.view() : TensorView(),
       .rstd = statistics.rstd,
       .epsilon = epsilon,
       .gamma_offset = gamma_offset,
       .amax = magnitude},
      tape.stream());
  tape.charge(elementwise_cost(y, beta != nullptr ? 9 : 5, 4));

  Value sum_value = tape.split_output(std::move(sum), [ids](Tape& t, Tensor gradient) {
    t.add_gradient(ids[0], gradient, t.gradient_extras());
    t.add_gradient(ids[1], std::move(gradient), t.gradient_extras());
  });
  NormBackward backward{sum_value.id, Saved(sum_value), std::move(statistics), gamma,
                        beta,         gamma_offset};
  Value norm =
      with_magnitude(tape.split_output(std::move(y), std::move(backward)), std::move(magnitude));
  return {.sum = std::move(sum_value), .norm = std::move(norm)};
}

}  // namespace

SumAndNorm add_layer_norm(Tape& tape, Value x, const Value& residual, Parameter& gamma,
                          Parameter& beta, float epsilon) {
  return add_norm(tape, "add_layer_norm", std::move(x), residual, gamma, &beta, epsilon, 0.0F);
}

SumAndNorm add_rms_norm(Tape& tape, Value x, const Value& residual, Parameter& gamma, float epsilon,
                        float gamma_offset) {
  return add_norm(tape, "add_rms_norm", std::move(x), residual, gamma, nullptr, epsilon,
                  gamma_offset);
}

}  // namespace tessera::ops
