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

SmallGradients::SmallGradients(Tape& tape, const char* op, NamedParameter a, NamedParameter b)
    : op_(op), targets_{a, b} {
  for (const NamedParameter& target : targets_) {
    if (target.parameter != nullptr) check_gradient(op, target.name, *target.parameter);
  }
  if (tape.is_split()) {
    keep_apart(tape);
    return;
  }
  const bool has_first = static_cast<bool>(a.parameter->gradient);
  const bool has_second = b.parameter != nullptr && b.parameter->gradient;
  if (!has_first && !has_second) return;
  if (has_first && has_second) {
    require(a.parameter->gradient_written == b.parameter->gradient_written,
            ErrorCode::kInvalidArgument, op, ": ", a.name, " and ", b.name,
            " must be used by the same operations");
    gradient_target(*b.parameter);
  }
  const GradientTarget target = gradient_target(has_first ? *a.parameter : *b.parameter);
  accumulate = target.accumulate;
  first = a.parameter->gradient;
  if (b.parameter == nullptr) return;
  second = b.parameter->gradient;
  if (has_first && has_second) return;
  scratch_ = tape.workspace(target.view.bytes(), "gradient of a frozen parameter");
  (has_first ? second : first) =
      TensorView(scratch_.view().data, target.view.dtype, target.view.shape);
}

void SmallGradients::keep_apart(Tape& tape) {
  const bool wanted = std::ranges::any_of(targets_, [](const NamedParameter& target) {
    return target.parameter != nullptr && target.parameter->trainable;
  });
  if (!wanted) return;
  for (int i = 0; i < 2; ++i) {
    if (targets_[i].parameter == nullptr) continue;
    sums_[i] = tape.activation(targets_[i].parameter->value.shape, DType::kFloat32,
                               "gradient of a small parameter");
  }
  first = sums_[0];
  if (sums_[1]) second = sums_[1];
}

void SmallGradients::finish(Tape& tape) {
  for (int i = 0; i < 2; ++i) {
    if (!sums_[i] || !targets_[i].parameter->trainable) continue;
    tape.write_gradients([op = op_, target = targets_[i], sum = std::exchange(sums_[i], {})](
                             Tape& t) { write_sums(t, op, target.name, sum, *target.parameter); });
  }
}

void write_sums(Tape& tape, const char* op, const char* what, const TensorView& sums,
                Parameter& parameter) {
  check_gradient(op, what, parameter);
  if (!parameter.gradient) return;
  const GradientTarget gradient = gradient_target(parameter);
  if (gradient.accumulate) {
    tape.kernels().add({.src = sums, .dst = gradient.view}, tape.stream());
    tape.charge(elementwise_cost(gradient.view, 1, 3));
  } else {
    tape.kernels().cast({.src = sums, .dst = gradient.view}, tape.stream());
    tape.charge(elementwise_cost(gradient.view, 0, 2));
  }
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

float rounded_to(DType dtype, float value) {
  if (dtype == DType::kBFloat16) return static_cast<float>(bfloat16(value));
  if (dtype == DType::kFloat16) return static_cast<float>(float16(value));
  return value;
}

Tensor reuse_or_allocate(Tape& tape, const Tensor& tensor, const char* what) {
  if (tensor.use_count() == 1) return tensor;
  return tape.activation(tensor.shape(), tensor.dtype(), what);
}

}  // namespace tessera::ops
