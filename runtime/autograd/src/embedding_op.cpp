#include <utility>

#include "op_support.h"

namespace tessera::ops {
namespace {

constexpr const char* kEmbeddingOp = "embedding";

void check_arguments(const TensorView& tokens, const Parameter& wte, const Parameter* wpe,
                     std::int64_t first_position) {
  require(tokens.shape.rank() == 2 && tokens.dtype == DType::kInt32, ErrorCode::kInvalidArgument,
          kEmbeddingOp, ": tokens must be (batch, length) int32, got ", tokens.shape, " ",
          to_string(tokens.dtype));
  require(wte.value.shape.rank() == 2, ErrorCode::kInvalidArgument, kEmbeddingOp, ": wte ",
          wte.value.shape, " must be a matrix");
  check_compute_dtype(kEmbeddingOp, "wte", wte.value, wte.value.dtype);
  if (wpe == nullptr) return;
  const Shape& positions = wpe->value.shape;
  require(positions.rank() == 2 && wte.value.shape[1] == positions[1], ErrorCode::kInvalidArgument,
          kEmbeddingOp, ": wte ", wte.value.shape, " and wpe ", positions,
          " must be matrices of equal width");
  require(first_position >= 0 && first_position + tokens.shape[1] <= positions[0],
          ErrorCode::kInvalidArgument, kEmbeddingOp, ": sequences of ", tokens.shape[1],
          " tokens from position ", first_position, " on are longer than the context of ",
          positions[0]);
  require(first_position == 0 || !wpe->gradient, ErrorCode::kInvalidArgument, kEmbeddingOp,
          ": positions that begin at ", first_position, " must be frozen");
  check_compute_dtype(kEmbeddingOp, "wpe", wpe->value, wte.value.dtype);
}

/// Where the gradient of the positions in use goes; no view if they are frozen.
GradientTarget positions_target(Tape& tape, Parameter* wpe, std::int64_t length) {
  if (wpe == nullptr) return {};
  check_gradient(kEmbeddingOp, "wpe", *wpe);
  if (!wpe->gradient) return {};
  GradientTarget target = gradient_target(*wpe);
  const std::int64_t beyond = target.view.shape[0] - length;
  if (beyond > 0 && !target.accumulate) {
    tape.kernels().fill({.dst = target.view.narrow(0, length, beyond)}, tape.stream());
  }
  target.view = target.view.narrow(0, 0, length);
  return target;
}

void backward(Tape& tape, const TensorView& tokens, const TensorView& dx, Parameter& wte,
              Parameter* wpe, const TensorView& starts, float scale) {
  check_gradient(kEmbeddingOp, "wte", wte);
  const GradientTarget dwte = wte.gradient ? gradient_target(wte) : GradientTarget{};
  const GradientTarget dwpe = positions_target(tape, wpe, tokens.shape[1]);
  if (!dwte.view && !dwpe.view) return;
  tape.kernels().embedding_backward({.tokens = tokens,
                                     .dx = dx,
                                     .dwte = dwte.view,
                                     .dwpe = dwpe.view,
                                     .accumulate_wte = dwte.accumulate,
                                     .accumulate_wpe = dwpe.accumulate,
                                     .starts = starts,
                                     .scale = scale},
                                    tape.stream());
  tape.charge(elementwise_cost(dx, 2, wpe == nullptr ? 3 : 5));
  if (dwte.view && !dwte.accumulate) tape.charge(elementwise_cost(dwte.view, 0, 1));
}

}  // namespace

Value embedding(Tape& tape, const TensorView& tokens, Parameter& wte, Parameter* wpe,
                const TensorView& starts, float scale, std::int64_t first_position) {
  check_arguments(tokens, wte, wpe, first_position);
  scale = rounded_to(wte.value.dtype, scale);
  const std::int64_t length = tokens.shape[1];
  Tensor x = tape.activation(Shape{tokens.shape[0], length, wte.value.shape[1]}, wte.value.dtype,
                             "embedding output");
  const TensorView positions =
      wpe == nullptr ? TensorView{} : wpe->value.narrow(0, first_position, length);
  tape.kernels().embedding_forward({.tokens = tokens,
                                    .wte = wte.value,
                                    .wpe = positions,
                                    .x = x,
                                    .starts = starts,
                                    .scale = scale},
                                   tape.stream());
  tape.charge(elementwise_cost(x, 1, wpe == nullptr ? 2 : 3));
  return tape.split_output(std::move(x),
                           [tokens, &wte, wpe, starts, scale](Tape& t, const Tensor& dx) {
                             if (!wte.trainable && (wpe == nullptr || !wpe->trainable)) return;
                             t.write_gradients([tokens, dx, &wte, wpe, starts, scale](Tape& later) {
                               backward(later, tokens, dx, wte, wpe, starts, scale);
                             });
                           });
}

}  // namespace tessera::ops
