#include "gemm_arguments.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

/// Elements from row to row, after checking that those of a row are neighbours.
std::int64_t checked_row_stride(const TensorView& view, const char* name) {
  require(view.shape.rank() == 2, ErrorCode::kInvalidArgument, "gemm: ", name, " has shape ",
          view.shape, ", wanted a matrix");
  const std::int64_t columns = view.shape[1];
  require(columns <= 1 || view.strides[1] == 1, ErrorCode::kInvalidArgument, "gemm: ", name,
          " has a column stride of ", view.strides[1], ", wanted 1");
  return view.shape[0] > 1 ? view.strides[0] : std::max<std::int64_t>(columns, 1);
}

/// GELU's operands go through elementwise kernels, which take contiguous tensors of one dtype.
void check_gelu_operand(const GemmArgs& args, const TensorView& view, const char* name) {
  require(view.shape == args.c.shape && view.dtype == args.a.dtype && view.is_contiguous(),
          ErrorCode::kInvalidArgument, "gemm: ", name, " is ", view.shape, " of ",
          to_string(view.dtype), "; with GELU it must be contiguous, ", args.c.shape, " of ",
          to_string(args.a.dtype), " as the operands are");
}

void check_gelu(const GemmArgs& args) {
  if (args.gelu_input && !args.gelu)
    fail(ErrorCode::kInvalidArgument, "gemm: gelu_input is written only with gelu");
  if (args.gelu && (args.accumulate || args.gelu_backward_input))
    fail(ErrorCode::kInvalidArgument, "gemm: gelu goes neither with accumulate nor with backward");
  if (args.gelu_backward_input && (args.accumulate || args.bias))
    fail(ErrorCode::kInvalidArgument,
         "gemm: gelu_backward_input goes neither with accumulate nor with a bias");
  if (args.gelu || args.gelu_backward_input) check_gelu_operand(args, args.c, "c");
  if (args.gelu_input) check_gelu_operand(args, args.gelu_input, "gelu_input");
  if (args.gelu_backward_input)
    check_gelu_operand(args, args.gelu_backward_input, "gelu_backward_input");
}

void check_residual(const GemmArgs& args) {
  if (args.accumulate || args.gelu || args.gelu_backward_input)
    fail(ErrorCode::kInvalidArgument,
         "gemm: a residual goes with a bias, but with nothing else that is added or follows");
  require(args.residual.shape == args.c.shape && args.residual.dtype == args.c.dtype &&
              args.residual.is_contiguous() && args.c.is_contiguous(),
          ErrorCode::kInvalidArgument, "gemm: residual is ", args.residual.shape, " of ",
          to_string(args.residual.dtype), "; it and c must be contiguous, ", args.c.shape, " of ",
          to_string(args.c.dtype));
  const std::int64_t bytes = args.c.bytes();
  require(args.residual.data + bytes <= args.c.data || args.c.data + bytes <= args.residual.data,
          ErrorCode::kInvalidArgument, "gemm: residual and c overlap; accumulate adds to c");
}

void check_fp8_operand(const TensorView& view, const Fp8Operand& operand, const char* name) {
  require(view.dtype == DType::kUInt8 && view.is_contiguous(), ErrorCode::kInvalidArgument,
          "gemm: ", name, " is ", view.shape, " of ", to_string(view.dtype),
          ", expected contiguous codes of uint8, as there is an amax of it");
  require(operand.amax.numel() == 1 && operand.amax.dtype == DType::kInt32,
          ErrorCode::kInvalidArgument, "gemm: the amax of ", name, " is ", operand.amax.shape,
          " of ", to_string(operand.amax.dtype), ", expected one int32");
}

void check_fp8(const GemmArgs& args) {
  check_fp8_operand(args.a, args.a_fp8, "a");
  check_fp8_operand(args.b, args.b_fp8, "b");
  require(!args.transpose_a && args.transpose_b, ErrorCode::kInvalidArgument,
          "gemm: codes of fp8 are multiplied along the rows of both matrices; set transpose_b "
          "alone, and pass transposed codes");
  require(args.a_fp8.format == Fp8Format::kE4M3 || args.b_fp8.format == Fp8Format::kE4M3,
          ErrorCode::kInvalidArgument, "gemm: a and b are both E5M2, expected one of E4M3");
  require(!args.gelu && !args.gelu_backward_input, ErrorCode::kInvalidArgument,
          "gemm: codes of fp8 go neither with GELU nor with its derivative");
}

}  // namespace

GemmSizes check_gemm(const GemmArgs& args) {
  GemmSizes sizes;
  sizes.a_stride = checked_row_stride(args.a, "a");
  sizes.b_stride = checked_row_stride(args.b, "b");
  sizes.c_stride = checked_row_stride(args.c, "c");
  sizes.m = args.a.shape[args.transpose_a ? 1 : 0];
  sizes.n = args.b.shape[args.transpose_b ? 0 : 1];
  sizes.k = args.a.shape[args.transpose_a ? 0 : 1];
  require(args.b.shape[args.transpose_b ? 1 : 0] == sizes.k && args.c.shape[0] == sizes.m &&
              args.c.shape[1] == sizes.n && (!args.bias || args.bias.numel() == sizes.n),
          ErrorCode::kInvalidArgument, "gemm: shapes do not fit: a ", args.a.shape,
          args.transpose_a ? " transposed" : "", ", b ", args.b.shape,
          args.transpose_b ? " transposed" : "", ", c ", args.c.shape, ", bias of ",
          args.bias ? args.bias.numel() : 0);
  require(!args.bias || args.bias.is_contiguous(), ErrorCode::kInvalidArgument,
          "gemm: the bias is not contiguous");
  const bool in_fp8 = args.a_fp8.amax || args.b_fp8.amax;
  if (in_fp8) check_fp8(args);
  const DType dtype = in_fp8 ? DType::kBFloat16 : args.a.dtype;  // T
  require(is_compute_dtype(dtype) && (in_fp8 || args.b.dtype == dtype) &&
              (args.c.dtype == dtype || args.c.dtype == DType::kFloat32) &&
              (!args.bias || args.bias.dtype == dtype),
          ErrorCode::kInvalidArgument, "gemm: unsupported dtypes: a ", to_string(dtype), ", b ",
          to_string(args.b.dtype), ", c ", to_string(args.c.dtype));
  check_gelu(args);
  if (args.residual) check_residual(args);
  return sizes;
}

std::optional<GemmArgs> without_epilogue(const GemmArgs& args) {
  GemmArgs left = args;
  if (args.residual) {
    left.residual = {};
    return left;
  }
  if (!args.gelu && !args.gelu_backward_input) return std::nullopt;
  left.gelu = false;
  left.gelu_input = {};
  left.gelu_backward_input = {};
  if (args.gelu_input) left.c = args.gelu_input;
  return left;
}

}  // namespace tessera
