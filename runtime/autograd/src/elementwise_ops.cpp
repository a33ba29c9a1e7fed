#include <string>
#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

/// A smooth activation function y = f(x), whose derivative is taken at x.
template <typename ForwardArgs, typename BackwardArgs>
struct Activation {
  const char* name;
  ForwardArgs forward_args;  ///< but for the tensors
  BackwardArgs backward_args;
  KernelFunction<ForwardArgs> KernelTable::*forward;
  KernelFunction<BackwardArgs> KernelTable::*backward;
  Cost (*forward_cost)(const TensorView&);
  Cost (*backward_cost)(const TensorView&);

  /// Whether its kernels leave the largest magnitude of what they write.
  static constexpr bool kLeavesMagnitude = requires(ForwardArgs args) { args.amax; };

  static Tensor word(Tape& tape, DType dtype) {
    if constexpr (kLeavesMagnitude) return tape.magnitude_word(dtype);
    return {};
  }
  template <typename Args>
  static void leave(Args& args, const TensorView& magnitude) {
    if constexpr (kLeavesMagnitude) args.amax = magnitude;
  }

  /// The host's part of forward and of remaking it.
  void run(Tape& tape, const TensorView& x, const TensorView& y,
           const TensorView& magnitude = {}) const {
    ForwardArgs args = forward_args;
    args.x = x;
    args.y = y;
    leave(args, magnitude);
    (tape.kernels().*forward)(args, tape.stream());
    tape.charge(forward_cost(y));
  }

  Value operator()(Tape& tape, Value x) const {
    check_compute_dtype(name, "x", x.tensor, x.dtype());
    const std::string what = concat(name, " output");
    Tensor y = tape.recording() ? tape.activation(x.shape(), x.dtype(), what)
                                : reuse_or_allocate(tape, x.tensor, what.c_str());
    Tensor magnitude = word(tape, x.dtype());
    run(tape, x.tensor, y, magnitude);
    if (!tape.recording()) {
      return with_magnitude(tape.split_output(std::move(y), nullptr), std::move(magnitude));
    }

    auto remake = tape.rematerialization([*this, saved = Saved(x)](Tape& t) {
      const Tensor x_tensor = saved.get();
      Tensor remade =
          t.activation(x_tensor.shape(), x_tensor.dtype(), concat("recomputed ", name, " output"));
      run(t, x_tensor, remade);
      return remade;
    });
    auto on_gradient = [*this, x_id = x.id, saved = Saved(x)](Tape& t, Tensor dy) mutable {
      if (x_id < 0) return;
      Tensor dx = reuse_or_allocate(t, dy, concat(name, " input gradient").c_str());
      const Tensor x_tensor = saved.get();
      BackwardArgs args = backward_args;
      args.x = x_tensor;
      args.dy = dy;
      args.dx = dx;
      Tensor of_dx = word(t, dx.dtype());
      leave(args, of_dx);
      (t.kernels().*backward)(args, t.stream());
      t.charge(backward_cost(dx));
      dy = {};  // now dx has its memory to itself
      saved = {};
      t.add_gradient(x_id, std::move(dx), {.magnitude = std::move(of_dx)});
    };
    return with_magnitude(
        tape.split_output(std::move(y), std::move(on_gradient), std::move(remake)),
        std::move(magnitude));
  }
};

/// An activation function whose derivative is taken at its output, in place of `x` where nothing
/// else holds it.
Value run_output_activation(Tape& tape, Value x, OutputActivation function, const char* name,
                            double flops) {
  check_compute_dtype(name, "x", x.tensor, x.dtype());
  Tensor y = reuse_or_allocate(tape, x.tensor, concat(name, " output").c_str());
  tape.kernels().relu_forward({.x = x.tensor, .y = y, .function = function}, tape.stream());
  tape.charge(elementwise_cost(y, flops, 2));
  auto backward = [x_id = x.id, saved = y, function, name](Tape& t, Tensor dy) mutable {
    if (x_id < 0) return;
    Tensor dx = reuse_or_allocate(t, dy, concat(name, " input gradient").c_str());
    t.kernels().relu_backward({.y = saved, .dy = dy, .dx = dx, .function = function}, t.stream());
    t.charge(elementwise_cost(dx, function == OutputActivation::kTanh ? 3 : 1, 3));
    dy = {};
    saved = {};
    t.add_gradient(x_id, std::move(dx));
  };
  return tape.split_output(std::move(y), std::move(backward));
}

}  // namespace

Value gelu(Tape& tape, Value x, GeluForm form) {
  const Activation<GeluForwardArgs, GeluBackwardArgs> gelu{"gelu",
                                                           {.form = form},
                                                           {.form = form},
                                                           &KernelTable::gelu_forward,
                                                           &KernelTable::gelu_backward,
                                                           gelu_cost,
                                                           gelu_backward_cost};
  return gelu(tape, std::move(x));
}

Value silu(Tape& tape, Value x) {
  const Activation<SiluForwardArgs, SiluBackwardArgs> silu{
      "silu",
      {},
      {},
      &KernelTable::silu_forward,
      &KernelTable::silu_backward,
      [](const TensorView& y) { return elementwise_cost(y, 6.0, 2); },
      [](const TensorView& dx) { return elementwise_cost(dx, 11.0, 3); }};
  return silu(tape, std::move(x));
}

Value relu(Tape& tape, Value x) {
  return run_output_activation(tape, std::move(x), OutputActivation::kRelu, "relu", 1);
}

Value tanh(Tape& tape, Value x) {
  return run_output_activation(tape, std::move(x), OutputActivation::kTanh, "tanh", 20);
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
  return tape.split_output(std::move(sum), [a_id = a.id, b_id = b.id](Tape& t, Tensor gradient) {
    t.add_gradient(a_id, gradient);
    t.add_gradient(b_id, std::move(gradient));
  });
}

Value dropout(Tape& tape, Value x, float probability) {
  require(probability >= 0.0F && probability < 1.0F, ErrorCode::kInvalidArgument,
          "dropout: the probability must be in [0, 1), got ", probability);
  check_compute_dtype("dropout", "x", x.tensor, x.dtype());
  if (probability == 0.0F || !tape.options().training) return x;

  const std::uint64_t call = tape.next_random_call();
  std::int64_t sample_numel = 0;
  if (tape.options().first_sample) {
    const std::int64_t samples = tape.samples();
    require(samples > 0 && x.tensor.numel() % samples == 0, ErrorCode::kInvalidArgument,
            "dropout: x ", x.tensor.shape(), " has no equal parts for ", samples, " samples");
    sample_numel = x.tensor.numel() / samples;
  }
  const auto run = [=](Tape& t, const TensorView& from, const TensorView& to) {
    t.kernels().dropout({.x = from,
                         .y = to,
                         .probability = probability,
                         .key = t.options().random_key,
                         .call = call,
                         .first_sample = t.options().first_sample,
                         .sample_numel = sample_numel},
                        t.stream());
    t.charge(elementwise_cost(to, 2, 2));
  };
  Tensor y = reuse_or_allocate(tape, x.tensor, "dropout output");
  run(tape, x.tensor, y);
  return tape.split_output(std::move(y), [run, x_id = x.id](Tape& t, Tensor dy) {
    if (x_id < 0) return;
    Tensor dx = reuse_or_allocate(t, dy, "dropout input gradient");
    run(t, dy, dx);
    dy = {};
    t.add_gradient(x_id, std::move(dx));
  });
}

}  // namespace tessera::ops
