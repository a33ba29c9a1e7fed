#include "op_support.h"

#include <utility>
#include <vector>

namespace tessera::ops {

Shape with_last_dim(const Shape& shape, std::int64_t last) {
  std::vector<std::int64_t> dims;
  for (int i = 0; i + 1 < shape.rank(); ++i) dims.push_back(shape[i]);
  dims.push_back(last);
  return Shape(dims);
}

void check_compute_dtype(const char* op, const char* what, const TensorView& view, DType like) {
  require(is_compute_dtype(view.dtype), ErrorCode::kInvalidArgument, op, ": ", what,
          " must be fp32, bf16 or fp16, got ", to_string(view.dtype));
  require(view.dtype == like, ErrorCode::kInvalidArgument, op, ": ", what, " is ",
          to_string(view.dtype), " and must be ", to_string(like), " like the input");
}

void check_operand(const char* op, const char* what, const TensorView& view, const Shape& shape,
                   DType dtype) {
  require(view.shape == shape, ErrorCode::kInvalidArgument, op, ": ", what, " has shape ",
          view.shape, " and must have ", shape);
  check_compute_dtype(op, what, view, dtype);
}

void check_gradient(const char* op, const char* what, const Parameter& parameter) {
  require(!parameter.gradient || parameter.gradient.shape == parameter.value.shape,
          ErrorCode::kInvalidArgument, op, ": the gradient of ", what, " has shape ",
          parameter.gradient.shape, " and the parameter ", parameter.value.shape);
}

GradientTarget gradient_target(Parameter& parameter) {
  return {.view = parameter.gradient,
          .accumulate = std::exchange(parameter.gradient_written, true)};
}

Cost gemm_cost(std::int64_t m, std::int64_t n, std::int64_t k, DType operands, DType result) {
  const auto fm = static_cast<double>(m);
  const auto fn = static_cast<double>(n);
  const auto fk = static_cast<double>(k);
  return {.flops = 2.0 * fm * fn * fk,
          .bytes = static_cast<double>(size_of(operands)) * (fm * fk + fk * fn) +
                   static_cast<double>(size_of(result)) * fm * fn};
}

Cost gelu_cost(const TensorView& view) { return elementwise_cost(view, 10.0, 2); }

Cost gelu_backward_cost(const TensorView& view) { return elementwise_cost(view, 16.0, 3); }

Cost elementwise_cost(const TensorView& view, double flops_per_element, double passes) {
  return {.flops = flops_per_element * static_cast<double>(view.numel()),
          .bytes = passes * static_cast<double>(view.bytes())};
}

Tensor reuse_or_allocate(Tape& tape, const Tensor& tensor, const char* what) {
  if (tensor.use_count() == 1) return tensor;
  return tape.activation(tensor.shape(), tensor.dtype(), what);
}

}  // namespace tessera::ops
