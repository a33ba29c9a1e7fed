#include "layer_norm_arguments.h"

#include "fp8_arguments.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

void check(const TensorView& view, const char* name, std::int64_t numel, DType dtype) {
  require(view.numel() == numel && view.dtype == dtype && view.is_contiguous(),
          ErrorCode::kInvalidArgument, "layer_norm: ", name, " is ", view.shape, " of ",
          to_string(view.dtype), ", wanted ", numel, " contiguous elements of ", to_string(dtype));
}

void check_parameter_gradient(const TensorView& view, const char* name, std::int64_t width) {
  require(is_compute_dtype(view.dtype), ErrorCode::kInvalidArgument, "layer_norm: ", name, " is ",
          to_string(view.dtype), ", expected fp32, bf16 or fp16");
  check(view, name, width, view.dtype);
}

LayerNormSizes sizes_of(const TensorView& x) {
  require(x.shape.rank() >= 1, ErrorCode::kInvalidArgument, "layer_norm: x is a scalar");
  require(is_compute_dtype(x.dtype) && x.is_contiguous(), ErrorCode::kInvalidArgument,
          "layer_norm: x is ", x.shape, " of ", to_string(x.dtype),
          ", expected contiguous fp32, bf16 or fp16");
  const std::int64_t width = x.shape[x.shape.rank() - 1];
  return {.rows = width == 0 ? 0 : x.numel() / width, .width = width};
}

}  // namespace

LayerNormSizes check_layer_norm(const LayerNormForwardArgs& args) {
  const auto [rows, width] = sizes_of(args.x);
  const DType dtype = args.x.dtype;
  check(args.y, "y", rows * width, dtype);
  check(args.gamma, "gamma", width, dtype);
  require(static_cast<bool>(args.beta) == static_cast<bool>(args.mean) || rows * width == 0,
          ErrorCode::kInvalidArgument, "layer_norm: give both beta and mean, or none");
  if (args.beta) check(args.beta, "beta", width, dtype);
  if (args.mean) check(args.mean, "mean", rows, DType::kFloat32);
  check(args.rstd, "rstd", rows, DType::kFloat32);
  if (args.residual) {
    check(args.residual, "residual", rows * width, dtype);
    check(args.sum, "sum", rows * width, dtype);
  }
  if (args.amax) check_amax("layer_norm", args.amax);
  return {rows, width};
}

LayerNormSizes check_layer_norm(const LayerNormBackwardArgs& args) {
  const auto [rows, width] = sizes_of(args.x);
  const DType dtype = args.x.dtype;
  check(args.dy, "dy", rows * width, dtype);
  check(args.dx, "dx", rows * width, dtype);
  check(args.gamma, "gamma", width, dtype);
  if (args.mean) check(args.mean, "mean", rows, DType::kFloat32);
  check(args.rstd, "rstd", rows, DType::kFloat32);
  if (args.d_residual) check(args.d_residual, "d_residual", rows * width, dtype);
  require(args.mean ? static_cast<bool>(args.dgamma) == static_cast<bool>(args.dbeta)
                    : !args.dbeta || rows == 0,
          ErrorCode::kInvalidArgument,
          "layer_norm: with a mean give both dgamma and dbeta, or none; without it no dbeta");
  if (args.dgamma) check_parameter_gradient(args.dgamma, "dgamma", width);
  if (args.dbeta) check_parameter_gradient(args.dbeta, "dbeta", width);
  if (args.dx_sums) check(args.dx_sums, "dx_sums", width, DType::kFloat32);
  if (args.amax) check_amax("layer_norm", args.amax);
  return {rows, width};
}

}  // namespace tessera
