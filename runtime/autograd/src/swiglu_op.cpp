#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

/// `magnitude`: where the largest one is left; empty: nowhere.
void run_forward(Tape& tape, const TensorView& x, const TensorView& y, GateFunction function,
                 const TensorView& magnitude = {}) {
  tape.kernels().swiglu_forward(
      {.x = as_matrix(x), .y = as_matrix(y), .function = function, .amax = magnitude},
      tape.stream());
  tape.charge(elementwise_cost(y, function == GateFunction::kSilu ? 7 : 11, 3));
}

/// `op` is a literal.
Value gated(Tape& tape, const char* op, Value x, GateFunction function) {
  check_compute_dtype(op, "x", x.tensor, x.dtype());
  const std::int64_t width = last_dim(x.shape());
  require(x.shape().rank() >= 1 && width % 2 == 0, ErrorCode::kInvalidArgument, op, ": x is ",
          x.shape(), ", and its last dimension must be gate and up, as many of both");
  const Shape shape = with_last_dim(x.shape(), width / 2);
  Tensor y = tape.activation(shape, x.dtype(), concat(op, " output"));
  Tensor magnitude = tape.magnitude_word(x.dtype());
  run_forward(tape, x.tensor, y, function, magnitude);
  if (!tape.recording()) {
    return with_magnitude(tape.split_output(std::move(y), nullptr), std::move(magnitude));
  }

  auto remake = tape.rematerialization([op, shape, function, saved = Saved(x)](Tape& t) {
    const Tensor x_tensor = saved.get();
    Tensor remade = t.activation(shape, x_tensor.dtype(), concat("recomputed ", op, " output"));
    run_forward(t, x_tensor, remade, function);
    return remade;
  });
  auto backward = [op, function, x_id = x.id, saved = Saved(x)](Tape& t, Tensor dy) mutable {
    if (x_id < 0) return;
    Tensor x_tensor = saved.get();
    saved = {};
    Tensor dx = reuse_or_allocate(t, x_tensor, concat(op, " input gradient").c_str());
    Tensor of_dx = t.magnitude_word(dx.dtype());
    t.kernels().swiglu_backward({.x = as_matrix(x_tensor),
                                 .dy = as_matrix(dy),
                                 .dx = as_matrix(dx),
                                 .function = function,
                                 .amax = of_dx},
                                t.stream());
    t.charge(elementwise_cost(dy, function == GateFunction::kSilu ? 12 : 18, 5));
    dy = {};
    x_tensor = {};  // now dx has its memory to itself
    t.add_gradient(x_id, std::move(dx), {.magnitude = std::move(of_dx)});
  };
  return with_magnitude(tape.split_output(std::move(y), std::move(backward), std::move(remake)),
                        std::move(magnitude));
}

}  // namespace

Value swiglu(Tape& tape, Value x) {
  return gated(tape, "swiglu", std::move(x), GateFunction::kSilu);
}

Value geglu(Tape& tape, Value x) { return gated(tape, "geglu", std::move(x), GateFunction::kGelu); }

}  // namespace tessera::ops
