#include <utility>

#include "linear_parts.h"

// LoRA's addition to a linear layer's output, by GEMMs alone:
//
//   h (rows, R) = scale * (x a^T);  y[:, columns] += h b^T
//   db = dy^T h;  dh = scale * (dy b);  da = dh^T x;  dx = dh a
//
// The sum is rounded once, where the second GEMM stores it. h is small and kept for backward; dy
// are the columns of the gradient of y where they lie.

namespace tessera::ops {
namespace {

constexpr const char* kOp = "add_low_rank";

void scale_in_place(Tape& tape, const TensorView& x, float scale) {
  if (scale == 1.0F) return;
  tape.kernels().cast({.src = x, .dst = x, .scale = scale}, tape.stream());
  tape.charge(elementwise_cost(x, 1, 2));
}

/// `columns` of a matrix's rows.
TensorView columns_of(const TensorView& y, const LowRank& p) {
  return as_matrix(y).narrow(1, p.first_column, p.b.value.shape[0]);
}

void check_low_rank(const Value& y, const Value& x, const LowRank& p) {
  check_compute_dtype(kOp, "y", y.tensor, y.dtype());
  check_linear(kOp, x.shape(), y.dtype(), p.a, nullptr);
  check_linear(kOp, Shape{leading_rows(x.shape()), p.a.value.shape[0]}, y.dtype(), p.b, nullptr);
  require(p.first_column >= 0 && p.first_column + p.b.value.shape[0] <= last_dim(y.shape()) &&
              leading_rows(y.shape()) == leading_rows(x.shape()),
          ErrorCode::kInvalidArgument, kOp, ": columns ", p.first_column, " to ",
          p.first_column + p.b.value.shape[0], " of ", leading_rows(x.shape()),
          " rows do not fit y ", y.shape());
}

}  // namespace

Value add_low_rank(Tape& tape, Value y, const Value& x, const LowRank& p) {
  check_low_rank(y, x, p);
  const Shape hidden_shape = with_last_dim(x.shape(), p.a.value.shape[0]);
  Tensor hidden = tape.activation(hidden_shape, x.dtype(), "low-rank hidden");
  run_linear(tape, as_matrix(x.tensor), p.a, nullptr, as_matrix(hidden));
  scale_in_place(tape, hidden, p.scale);
  tape.kernels().gemm({.a = as_matrix(hidden),
                       .b = p.b.value,
                       .c = columns_of(y.tensor, p),
                       .transpose_b = true,
                       .accumulate = true},
                      tape.stream());
  tape.charge(gemm_cost(leading_rows(x.shape()), p.b.value.shape[0], p.b.value.shape[1], x.dtype(),
                        y.dtype()));

  auto backward = [y_id = y.id, x_id = x.id, x_shape = x.shape(), x_saved = Saved(x),
                   hidden = Saved(hidden, nullptr), p](Tape& t, Tensor dy) mutable {
    const TensorView columns = columns_of(dy, p);
    write_linear_gradients(kOp, t, {dy, columns}, hidden, p.b, nullptr);
    Tensor d_hidden = t.activation(hidden.get().shape(), dy.dtype(), "low-rank hidden gradient");
    hidden = {};
    run_input_gradient(t, columns, p.b, as_matrix(d_hidden));
    scale_in_place(t, d_hidden, p.scale);
    write_linear_gradients(kOp, t, {d_hidden, as_matrix(d_hidden)}, std::exchange(x_saved, {}), p.a,
                           nullptr);
    if (x_id >= 0) {
      Tensor dx = t.activation(x_shape, dy.dtype(), "low-rank input gradient");
      run_input_gradient(t, as_matrix(d_hidden), p.a, as_matrix(dx));
      t.add_gradient(x_id, std::move(dx));
    }
    t.add_gradient(y_id, std::move(dy));
  };
  return tape.split_output(std::move(y.tensor), std::move(backward));
}

Value low_rank_hidden(Tape& tape, const Value& x, Parameter& a, float scale) {
  constexpr const char* kHiddenOp = "low_rank_hidden";
  check_compute_dtype(kHiddenOp, "x", x.tensor, x.dtype());
  check_linear(kHiddenOp, x.shape(), x.dtype(), a, nullptr);
  Tensor hidden =
      tape.activation(with_last_dim(x.shape(), a.value.shape[0]), x.dtype(), "low-rank hidden");
  run_linear(tape, as_matrix(x.tensor), a, nullptr, as_matrix(hidden));
  scale_in_place(tape, hidden, scale);
  auto backward = [x_id = x.id, x_shape = x.shape(), saved = Saved(x), &a, scale](
                      Tape& t, Tensor gradient) mutable {
    Tensor d_hidden = reuse_or_allocate(t, gradient, "low-rank hidden gradient");
    if (d_hidden.view().data != gradient.view().data) {
      t.kernels().cast({.src = gradient, .dst = d_hidden, .scale = scale}, t.stream());
      t.charge(elementwise_cost(d_hidden, 1, 2));
    } else {
      scale_in_place(t, d_hidden, scale);
    }
    gradient = {};
    write_linear_gradients(kHiddenOp, t, {d_hidden, as_matrix(d_hidden)}, std::exchange(saved, {}),
                           a, nullptr);
    if (x_id < 0) return;
    Tensor dx = t.activation(x_shape, d_hidden.dtype(), "low-rank input gradient");
    run_input_gradient(t, as_matrix(d_hidden), a, as_matrix(dx));
    t.add_gradient(x_id, std::move(dx));
  };
  return tape.split_output(std::move(hidden), std::move(backward));
}

}  // namespace tessera::ops
