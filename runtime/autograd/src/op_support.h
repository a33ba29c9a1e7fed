#pragma once

#include <cstdint>
#include <utility>

#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"

// Helpers of the operations of ops.h: shapes as matrices, checks, costs, places to write to.
namespace tessera::ops {

/// Size of the last dimension; 1 for a scalar.
inline std::int64_t last_dim(const Shape& shape) {
  return shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
}

/// Product of all dimensions but the last. Right also where the last is 0.
inline std::int64_t leading_rows(const Shape& shape) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return rows;
}

/// The elements as (rows, last dimension).
inline TensorView as_matrix(const TensorView& view) {
  return view.reshape(Shape{leading_rows(view.shape), last_dim(view.shape)});
}

/// A value with the largest magnitude that the kernel which wrote it has left.
inline Value with_magnitude(Value value, Tensor magnitude) {
  value.magnitude = std::move(magnitude);
  return value;
}

/// `shape` with another last dimension.
Shape with_last_dim(const Shape& shape, std::int64_t last);

/// Throws unless `view` is fp32, bf16 or fp16 and has the same dtype as `like`.
void check_compute_dtype(const char* op, const char* what, const TensorView& view, DType like);

/// Throws unless `view` has exactly `shape` and the compute dtype `dtype`.
void check_operand(const char* op, const char* what, const TensorView& view, const Shape& shape,
                   DType dtype);

/// Throws unless a parameter's gradient, when there is one, has the shape of the parameter.
void check_gradient(const char* op, const char* what, const Parameter& parameter);

/// A parameter's gradient for one kernel to write to, and whether the kernel has to add. Marks the
/// gradient as written.
struct GradientTarget {
  TensorView view;
  bool accumulate = false;
};
GradientTarget gradient_target(Parameter& parameter);

struct NamedParameter {
  const char* name = "";  ///< a literal
  Parameter* parameter = nullptr;
};

/// Where a kernel sums the gradients of one or two small parameters on its way to the gradient of
/// its input: all that are there, or none. One that is frozen beside one that is not is summed to
/// scratch. In Tape::backward_input() they are sums in fp32, which backward_weights() writes.
class SmallGradients {
 public:
  /// `op` is a literal.
  SmallGradients(Tape& tape, const char* op, NamedParameter first, NamedParameter second = {});
  /// Once the kernel has run.
  void finish(Tape& tape);

  TensorView first, second;  ///< of the parameters' shapes; empty: not wanted
  bool accumulate = false;

 private:
  void keep_apart(Tape& tape);

  const char* op_;
  NamedParameter targets_[2];
  Tensor sums_[2];
  Tensor scratch_;
};

/// Adds the sums of a small parameter's gradient (fp32, of its size) to what is there, or writes
/// them; does nothing to a parameter without a gradient. The bits are those of a kernel that does
/// so itself. `op` and `what` are literals.
void write_sums(Tape& tape, const char* op, const char* what, const TensorView& sums,
                Parameter& parameter);

/// Cost of C (M, N) = A (M, K) B (K, N) with elements of these sizes.
Cost gemm_cost(std::int64_t m, std::int64_t n, std::int64_t k, DType operands, DType result);

/// Cost of gelu(x) and of gelu'(x) * dy as kernels of their own, with results like `view`.
Cost gelu_cost(const TensorView& view);
Cost gelu_backward_cost(const TensorView& view);

/// `flops_per_element` for each element, and `passes` over memory of one such tensor.
Cost elementwise_cost(const TensorView& view, double flops_per_element, double passes);

/// The number as a tensor of that compute dtype has it.
float rounded_to(DType dtype, float value);

/// `tensor` itself if it may be overwritten, else fresh memory of its shape.
Tensor reuse_or_allocate(Tape& tape, const Tensor& tensor, const char* what);

}  // namespace tessera::ops
