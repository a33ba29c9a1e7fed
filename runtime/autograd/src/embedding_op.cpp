#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

constexpr const char* kEmbeddingOp = "embedding";

void check_arguments(const TensorView& tokens, const Parameter& wte, const Parameter& wpe) {
  require(tokens.shape.rank() == 2 && tokens.dtype == DType::kInt32, ErrorCode::kInvalidArgument,
          kEmbeddingOp, ": tokens must be (batch, length) int32, got ", tokens.shape, " ",
          to_string(tokens.dtype));
  require(wte.value.shape.rank() == 2 && wpe.value.shape.rank() == 2 &&
              wte.value.shape[1] == wpe.value.shape[1],
          ErrorCode::kInvalidArgument, kEmbeddingOp, ": wte ", wte.value.shape, " and wpe ",
          wpe.value.shape, " must be matrices of equal width");
  require(tokens.shape[1] <= wpe.value.shape[0], ErrorCode::kInvalidArgument, kEmbeddingOp,
          ": sequences of ", tokens.shape[1], " tokens are longer than the context of ",
          wpe.value.shape[0]);
  check_compute_dtype(kEmbeddingOp, "wte", wte.value, wte.value.dtype);
  check_compute_dtype(kEmbeddingOp, "wpe", wpe.value, wte.value.dtype);
}

void backward(Tape& tape, const TensorView& tokens, const TensorView& dx, Parameter& wte,
              Parameter& wpe) {
  check_gradient(kEmbeddingOp, "wte", wte);
  check_gradient(kEmbeddingOp, "wpe", wpe);
  if (!wte.gradient && !wpe.gradient) return;
  // The kernel writes both; one that is frozen goes to scratch.
  Tensor scratch;
  const auto target_of = [&](Parameter& parameter, const Parameter& other) {
    if (parameter.gradient) return gradient_target(parameter);
    const TensorView& value = parameter.value;
    const DType dtype = other.gradient.dtype;
    scratch = tape.workspace(value.numel() * static_cast<std::int64_t>(size_of(dtype)),
                             "gradient of a frozen embedding");
    return GradientTarget{TensorView(scratch.view().data, dtype, value.shape), false};
  };
  const GradientTarget dwte = target_of(wte, wpe);
  const GradientTarget dwpe = target_of(wpe, wte);
  // Positions that this batch does not reach.
  const std::int64_t length = tokens.shape[1];
  const std::int64_t beyond = dwpe.view.shape[0] - length;
  if (beyond > 0 && !dwpe.accumulate) {
    tape.kernels().fill({.dst = dwpe.view.narrow(0, length, beyond)}, tape.stream());
  }
  tape.kernels().embedding_backward({.tokens = tokens,
                                     .dx = dx,
                                     .dwte = dwte.view,
                                     .dwpe = dwpe.view.narrow(0, 0, length),
                                     .accumulate_wte = dwte.accumulate,
                                     .accumulate_wpe = dwpe.accumulate},
                                    tape.stream());
  tape.charge(elementwise_cost(dx, 2, 5));
  if (!dwte.accumulate) tape.charge(elementwise_cost(dwte.view, 0, 1));
}

}  // namespace

Value embedding(Tape& tape, const TensorView& tokens, Parameter& wte, Parameter& wpe) {
  check_arguments(tokens, wte, wpe);
  const std::int64_t length = tokens.shape[1];
  Tensor x = tape.activation(Shape{tokens.shape[0], length, wte.value.shape[1]}, wte.value.dtype,
                             "embedding output");
  tape.kernels().embedding_forward(
      {.tokens = tokens, .wte = wte.value, .wpe = wpe.value.narrow(0, 0, length), .x = x},
      tape.stream());
  tape.charge(elementwise_cost(x, 1, 3));
  return tape.output(std::move(x), [tokens, &wte, &wpe](Tape& t, const Tensor& dx) {
    backward(t, tokens, dx, wte, wpe);
  });
}

}  // namespace tessera::ops
