#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

/// y = gelu(x); the host's part of forward and of remaking it.
void run_gelu(Tape& tape, const TensorView& x, const TensorView& y) {
  tape.kernels().gelu_forward({.x = x, .y = y}, tape.stream());
  tape.charge(gelu_cost(y));
}

}  // namespace

Value gelu(Tape& tape, Value x) {
  check_compute_dtype("gelu", "x", x.tensor, x.dtype());
  constexpr const char* kWhat = "GELU output";
  Tensor y = tape.recording() ? tape.activation(x.shape(), x.dtype(), kWhat)
                              : reuse_or_allocate(tape, x.tensor, kWhat);
  run_gelu(tape, x.tensor, y);
  if (!tape.recording()) return tape.output(std::move(y), nullptr);

  auto remake = tape.rematerialization([saved = Saved(x)](Tape& t) {
    const Tensor x_tensor = saved.get();
    Tensor remade = t.activation(x_tensor.shape(), x_tensor.dtype(), "remade GELU output");
    run_gelu(t, x_tensor, remade);
    return remade;
  });
  auto backward = [x_id = x.id, saved = Saved(x)](Tape& t, Tensor dy) mutable {
    if (x_id < 0) return;
    Tensor dx = reuse_or_allocate(t, dy, "GELU input gradient");
    t.kernels().gelu_backward({.x = saved.get(), .dy = dy, .dx = dx}, t.stream());
    t.charge(gelu_backward_cost(dx));
    dy = {};  // now dx has its memory to itself
    saved = {};
    t.add_gradient(x_id, std::move(dx));
  };
  return tape.output(std::move(y), std::move(backward), std::move(remake));
}

Value add(Tape& tape, Value a, const Value& b) {
  check_compute_dtype("add", "a", a.tensor, a.dtype());
  check_operand("add", "b", b.tensor, a.shape(), a.dtype());
  Tensor sum = reuse_or_allocate(tape, a.tensor, "sum");
  if (sum.view().data == a.tensor.view().data) {
    tape.kernels().add({.src = b.tensor, .dst = sum}, tape.stream());
  } else {
    const TensorView sources[] = {a.tensor.view().flat(), b.tensor.view().flat()};
    tape.kernels().ordered_sum({.sources = sources, .dst = sum.view().flat()}, tape.stream());
  }
  tape.charge(elementwise_cost(sum, 1, 3));
  return tape.output(std::move(sum), [a_id = a.id, b_id = b.id](Tape& t, Tensor gradient) {
    t.add_gradient(a_id, gradient);
    t.add_gradient(b_id, std::move(gradient));
  });
}

Value dropout(Tape& tape, Value x, float probability) {
  require(probability >= 0.0F && probability < 1.0F, ErrorCode::kInvalidArgument,
          "dropout: the probability must be in [0, 1), got ", probability);
  check_compute_dtype("dropout", "x", x.tensor, x.dtype());
  if (probability == 0.0F || !tape.options().training) return x;

  const RandomKey key = tape.next_random_key();
  const auto run = [probability, key](Tape& t, const TensorView& from, const TensorView& to) {
    t.kernels().dropout({.x = from, .y = to, .probability = probability, .key = key}, t.stream());
    t.charge(elementwise_cost(to, 2, 2));
  };
  Tensor y = reuse_or_allocate(tape, x.tensor, "dropout output");
  run(tape, x.tensor, y);
  return tape.output(std::move(y), [run, x_id = x.id](Tape& t, Tensor dy) {
    if (x_id < 0) return;
    Tensor dx = reuse_or_allocate(t, dy, "dropout input gradient");
    run(t, dy, dx);
    dy = {};
    t.add_gradient(x_id, std::move(dx));
  });
}

}  // namespace tessera::ops
