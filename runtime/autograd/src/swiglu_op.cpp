#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

void run_forward(Tape& tape, const TensorView& x, const TensorView& y) {
  tape.kernels().swiglu_forward({.x = as_matrix(x), .y = as_matrix(y)}, tape.stream());
  tape.charge(elementwise_cost(y, 7, 3));
}

}  // namespace

Value swiglu(Tape& tape, Value x) {
  check_compute_dtype("swiglu", "x", x.tensor, x.dtype());
  const std::int64_t width = last_dim(x.shape());
  require(x.shape().rank() >= 1 && width % 2 == 0, ErrorCode::kInvalidArgument, "swiglu: x is ",
          x.shape(), ", and its last dimension must be gate and up, as many of both");
  const Shape shape = with_last_dim(x.shape(), width / 2);
  Tensor y = tape.activation(shape, x.dtype(), "swiglu output");
  run_forward(tape, x.tensor, y);
  if (!tape.recording()) return tape.split_output(std::move(y), nullptr);

  auto remake = tape.rematerialization([shape, saved = Saved(x)](Tape& t) {
    const Tensor x_tensor = saved.get();
    Tensor remade = t.activation(shape, x_tensor.dtype(), "recomputed swiglu output");
    run_forward(t, x_tensor, remade);
    return remade;
  });
  auto backward = [x_id = x.id, saved = Saved(x)](Tape& t, Tensor dy) mutable {
    if (x_id < 0) return;
    Tensor x_tensor = saved.get();
    saved = {};
    Tensor dx = reuse_or_allocate(t, x_tensor, "swiglu input gradient");
    t.kernels().swiglu_backward(
        {.x = as_matrix(x_tensor), .dy = as_matrix(dy), .dx = as_matrix(dx)}, t.stream());
    t.charge(elementwise_cost(dy, 12, 5));
    dy = {};
    x_tensor = {};  // now dx has its memory to itself
    t.add_gradient(x_id, std::move(dx));
  };
  return tape.split_output(std::move(y), std::move(backward), std::move(remake));
}

}  // namespace tessera::ops
