#include <utility>

#include "low_rank_parts.h"

namespace tessera::ops {

Value add_low_rank(Tape& tape, Value y, const Value& x, std::span<const LowRank> products) {
  constexpr const char* kOp = "add_low_rank";
  require(!products.empty(), ErrorCode::kInvalidArgument, kOp, ": no products to add");
  std::vector<LowRankGroup> groups = low_rank_groups(kOp, y, x, products);
  for (LowRankGroup& group : groups) group.run_forward(tape, x.tensor, y.tensor);

  auto backward = [y_id = y.id, x_id = x.id, x_shape = x.shape(), x_saved = Saved(x),
                   groups = std::move(groups)](Tape& t, Tensor dy) mutable {
    for (LowRankGroup& group : groups) group.run_backward(kOp, t, dy, x_saved);
    x_saved = {};
    if (x_id >= 0) {
      Tensor dx = t.activation(x_shape, dy.dtype(), "low-rank input gradient");
      bool accumulate = false;
      for (LowRankGroup& group : groups) {
        group.add_input_gradient(t, as_matrix(dx), std::exchange(accumulate, true));
      }
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
