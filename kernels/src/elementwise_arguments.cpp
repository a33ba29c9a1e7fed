#include "elementwise_arguments.h"

#include "documents_argument.h"
#include "fp8_arguments.h"
#include "random_key_argument.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// `n` contiguous elements of fp32, bf16 or fp16.
void check_flat(const char* kernel, const char* name, const TensorView& view, std::int64_t n) {
  require(view.numel() == n && view.is_contiguous(), ErrorCode::kInvalidArgument, kernel, ": ",
          name, " has shape ", view.shape, ", expected ", n, " contiguous elements");
  require(is_compute_dtype(view.dtype), ErrorCode::kInvalidArgument, kernel, ": ", name, " is ",
          to_string(view.dtype), ", expected fp32, bf16 or fp16");
}

/// Checks for as many contiguous elements as `like`, which is called `like_name`, of its dtype.
void check_like(const char* kernel, const char* like_name, const TensorView& like, const char* name,
                const TensorView& other) {
  check_flat(kernel, name, other, like.numel());
  require(other.dtype == like.dtype, ErrorCode::kInvalidArgument, kernel, ": ", name, " is ",
          to_string(other.dtype), ", but ", like_name, " is ", to_string(like.dtype));
}

/// x and y = f(x).
void check_forward(const char* kernel, const TensorView& x, const TensorView& y) {
  check_flat(kernel, "x", x, x.numel());
  check_like(kernel, "x", x, "y", y);
}

/// dx = dy * f', which is taken at `saved`.
void check_backward(const char* kernel, const char* saved_name, const TensorView& saved,
                    const TensorView& dy, const TensorView& dx) {
  check_flat(kernel, saved_name, saved, saved.numel());
  check_like(kernel, saved_name, saved, "dy", dy);
  check_like(kernel, saved_name, saved, "dx", dx);
}

/// (rows, C), C at least 1.
void check_matrix(const char* kernel, const char* name, const TensorView& view) {
  require(view.shape.rank() == 2 && (view.numel() == 0 || view.shape[1] > 0),
          ErrorCode::kInvalidArgument, kernel, ": ", name, " is ", view.shape,
          ", expected (rows, C)");
}

/// x or dx (B, L, C), L at least 1, and a mean or its gradient (B, C) of its dtype.
void check_mean(const char* kernel, const char* name, const TensorView& x, const char* mean_name,
                const TensorView& mean) {
  require(x.shape.rank() == 3 && mean.shape == Shape({x.shape[0], x.shape[2]}) &&
              (mean.numel() == 0 || x.shape[1] > 0),
          ErrorCode::kInvalidArgument, kernel, ": ", name, " is ", x.shape, " and ", mean_name,
          " is ", mean.shape, ", expected (B, L, C) and (B, C), L at least 1");
  check_flat(kernel, name, x, x.numel());
  check_flat(kernel, mean_name, mean, mean.numel());
  require(mean.dtype == x.dtype, ErrorCode::kInvalidArgument, kernel, ": ", mean_name, " is ",
          to_string(mean.dtype), ", but ", name, " is ", to_string(x.dtype));
}

/// x (rows, 2 F) and a tensor (rows, F) of its dtype.
void check_gated(const char* kernel, const TensorView& x, const char* name,
                 const TensorView& half) {
  require(x.shape.rank() == 2 && half.shape.rank() == 2 && x.shape[0] == half.shape[0] &&
              x.shape[1] == 2 * half.shape[1],
          ErrorCode::kInvalidArgument, kernel, ": x is ", x.shape, " and ", name, " is ",
          half.shape, ", expected (rows, 2 F) and (rows, F)");
  check_flat(kernel, "x", x, x.numel());
  check_flat(kernel, name, half, half.numel());
  require(x.dtype == half.dtype, ErrorCode::kInvalidArgument, kernel, ": x is ", to_string(x.dtype),
          " and ", name, " is ", to_string(half.dtype));
}

/// (rows, C) of a dtype; rows may be strided.
void check_rows(const char* kernel, const char* name, const TensorView& view, const Shape& shape,
                DType dtype) {
  require(view.shape == shape && view.dtype == dtype && (shape[1] <= 1 || view.strides[1] == 1),
          ErrorCode::kInvalidArgument, kernel, ": ", name, " is ", view.shape, " of ",
          to_string(view.dtype), " with a column stride of ", view.strides[1], ", expected ", shape,
          " of ", to_string(dtype), " with rows of neighbours");
}

/// `like` (rows, C), and C contiguous elements of its dtype.
void check_scaled(const char* kernel, const char* name, const TensorView& like,
                  const TensorView& scale) {
  require(like.shape.rank() == 2 && is_compute_dtype(like.dtype), ErrorCode::kInvalidArgument,
          kernel, ": ", name, " is ", like.shape, " of ", to_string(like.dtype),
          ", expected (rows, C) of fp32, bf16 or fp16");
  check_rows(kernel, name, like, like.shape, like.dtype);
  check_flat(kernel, "scale", scale, like.shape[1]);
  require(scale.dtype == like.dtype, ErrorCode::kInvalidArgument, kernel, ": scale is ",
          to_string(scale.dtype), ", but ", name, " is ", to_string(like.dtype));
}

void check_embedding(const char* kernel, const TensorView& tokens, const TensorView& x,
                     const TensorView& wte, const TensorView& wpe) {
  const bool batches = tokens.shape.rank() == 2 && x.shape.rank() == 3 &&
                       x.shape[0] == tokens.shape[0] && x.shape[1] == tokens.shape[1];
  const auto fits = [&](const TensorView& table, std::int64_t least_rows) {
    return !table || (table.shape.rank() == 2 && table.shape[1] == x.shape[2] &&
                      table.shape[0] >= least_rows);
  };
  require(batches && fits(wte, 0) && fits(wpe, tokens.shape[1]), ErrorCode::kInvalidArgument,
          kernel, ": tokens ", tokens.shape, ", x ", x.shape, ", wte ", wte.shape, " and wpe ",
          wpe.shape, " do not fit");
  require(tokens.is_contiguous() && x.is_contiguous() && wte.is_contiguous() && wpe.is_contiguous(),
          ErrorCode::kInvalidArgument, kernel, ": tensors must be contiguous");
  static_cast<void>(tokens.as<std::int32_t>());
}

}  // namespace

void check_arguments(const GeluForwardArgs& args) {
  check_forward("gelu_forward", args.x, args.y);
  if (args.amax) check_amax("gelu_forward", args.amax);
}

void check_arguments(const GeluBackwardArgs& args) {
  check_backward("gelu_backward", "x", args.x, args.dy, args.dx);
  if (args.amax) check_amax("gelu_backward", args.amax);
}

void check_arguments(const SiluForwardArgs& args) { check_forward("silu_forward", args.x, args.y); }

void check_arguments(const SiluBackwardArgs& args) {
  check_backward("silu_backward", "x", args.x, args.dy, args.dx);
}

void check_arguments(const ReluForwardArgs& args) { check_forward("relu_forward", args.x, args.y); }

void check_arguments(const ReluBackwardArgs& args) {
  check_backward("relu_backward", "y", args.y, args.dy, args.dx);
}

void check_arguments(const MultiplyArgs& args) {
  check_flat("multiply", "a", args.a, args.a.numel());
  check_like("multiply", "a", args.a, "b", args.b);
  check_like("multiply", "a", args.a, "y", args.y);
}

void check_arguments(const SoftmaxForwardArgs& args) {
  check_matrix("softmax_forward", "x", args.x);
  check_forward("softmax_forward", args.x, args.y);
}

void check_arguments(const SoftmaxBackwardArgs& args) {
  check_matrix("softmax_backward", "y", args.y);
  check_backward("softmax_backward", "y", args.y, args.dy, args.dx);
}

void check_arguments(const MeanRowsForwardArgs& args) {
  check_mean("mean_rows_forward", "x", args.x, "y", args.y);
}

void check_arguments(const MeanRowsBackwardArgs& args) {
  check_mean("mean_rows_backward", "dx", args.dx, "dy", args.dy);
}

void check_arguments(const SwigluForwardArgs& args) {
  check_gated("swiglu_forward", args.x, "y", args.y);
  if (args.amax) check_amax("swiglu_forward", args.amax);
}

void check_arguments(const SwigluBackwardArgs& args) {
  check_gated("swiglu_backward", args.x, "dy", args.dy);
  check_like("swiglu_backward", "x", args.x, "dx", args.dx);
  if (args.amax) check_amax("swiglu_backward", args.amax);
}

void check_arguments(const SoftCapArgs& args) {
  check_forward("soft_cap", args.x, args.y);
  require(args.cap > 0.0F, ErrorCode::kInvalidArgument, "soft_cap: the cap must be positive, got ",
          args.cap);
}

void check_arguments(const ScaleColumnsForwardArgs& args) {
  constexpr const char* kKernel = "scale_columns_forward";
  check_scaled(kKernel, "x", args.x, args.scale);
  check_rows(kKernel, "y", args.y, args.x.shape, args.x.dtype);
  if (args.kept) check_rows(kKernel, "kept", args.kept, args.x.shape, args.x.dtype);
}

void check_arguments(const ScaleColumnsBackwardArgs& args) {
  constexpr const char* kKernel = "scale_columns_backward";
  check_scaled(kKernel, "dy", args.dy, args.scale);
  check_rows(kKernel, "dx", args.dx, args.dy.shape, args.dy.dtype);
  if (!args.d_scale) return;
  check_rows(kKernel, "x", args.x, args.dy.shape, args.dy.dtype);
  check_flat(kKernel, "d_scale", args.d_scale, args.dy.shape[1]);
}

void check_arguments(const DropoutArgs& args) {
  require(args.x.numel() == args.y.numel() && args.x.dtype == args.y.dtype &&
              args.x.is_contiguous() && args.y.is_contiguous(),
          ErrorCode::kInvalidArgument, "dropout: x ", args.x.shape, " and y ", args.y.shape,
          " must be contiguous, of one size and dtype");
  require(args.probability >= 0.0F && args.probability < 1.0F && args.first_index >= 0,
          ErrorCode::kInvalidArgument, "dropout: probability ", args.probability,
          " is outside of [0, 1), or first_index ", args.first_index, " is negative");
  check_random_key("dropout: key", args.key);
  if (!args.first_sample) return;
  require(args.first_sample.dtype == DType::kInt64 && args.first_sample.numel() == 1 &&
              args.sample_numel > 0,
          ErrorCode::kInvalidArgument, "dropout: first_sample is ",
          to_string(args.first_sample.dtype), " of shape ", args.first_sample.shape,
          ", and a sample has ", args.sample_numel,
          " elements; expected one int64, and at least one element");
}

void check_arguments(const CastArgs& args) {
  const std::int64_t n = args.dst.numel();
  check_flat("cast", "src", args.src, n);
  check_flat("cast", "dst", args.dst, n);
}

void check_arguments(const AddArgs& args) {
  const std::int64_t n = args.dst.numel();
  check_flat("add", "src", args.src, n);
  check_flat("add", "dst", args.dst, n);
}

void check_arguments(const FillArgs& args) {
  check_flat("fill", "dst", args.dst, args.dst.numel());
}

void check_arguments(const FillNormalArgs& args) {
  require(args.dst.is_contiguous() && args.first_index >= 0, ErrorCode::kInvalidArgument,
          "fill_normal: needs a contiguous tensor and a first_index >= 0, got ", args.first_index);
}

void check_arguments(const OrderedSumArgs& args) {
  const std::int64_t n = args.dst.numel();
  check_flat("ordered_sum", "dst", args.dst, n);
  for (const TensorView& source : args.sources) check_flat("ordered_sum", "a source", source, n);
  require(args.accumulate || !args.sources.empty(), ErrorCode::kInvalidArgument,
          "ordered_sum: nothing to sum");
}

void check_arguments(const BiasGradientArgs& args) {
  require(args.dy.shape.rank() == 2 && args.db.numel() == args.dy.shape[1],
          ErrorCode::kInvalidArgument, "bias_gradient: dy is ", args.dy.shape, ", db is ",
          args.db.shape);
  check_flat("bias_gradient", "dy", args.dy, args.dy.numel());
  check_flat("bias_gradient", "db", args.db, args.db.numel());
}

void check_arguments(const SquaredErrorArgs& args) {
  constexpr const char* kKernel = "squared_error";
  const Shape& shape = args.x.shape;
  require(shape.rank() == 2 && shape[1] >= 1, ErrorCode::kInvalidArgument, kKernel,
          ": x has shape ", shape, ", expected (rows, at least 1)");
  check_flat(kKernel, "x", args.x, args.x.numel());
  check_flat(kKernel, "targets", args.targets, args.x.numel());
  check_flat(kKernel, "losses", args.losses, shape[0]);
  require(args.targets.dtype == DType::kFloat32 && args.losses.dtype == DType::kFloat32,
          ErrorCode::kInvalidArgument, kKernel, ": targets are ", to_string(args.targets.dtype),
          " and losses ", to_string(args.losses.dtype), ", expected fp32");
}

void check_arguments(const EmbeddingForwardArgs& args) {
  check_embedding("embedding_forward", args.tokens, args.x, args.wte, args.wpe);
  check_starts("embedding_forward", args.starts, args.tokens.shape[0], args.tokens.shape[1]);
  require(args.wte.data != nullptr || args.x.numel() == 0, ErrorCode::kInvalidArgument,
          "embedding_forward: there is no wte");
  require(args.x.dtype == args.wte.dtype && (!args.wpe || args.x.dtype == args.wpe.dtype),
          ErrorCode::kInvalidArgument, "embedding_forward: x, wte and wpe differ in dtype");
}

void check_arguments(const EmbeddingBackwardArgs& args) {
  check_embedding("embedding_backward", args.tokens, args.dx, args.dwte, args.dwpe);
  check_starts("embedding_backward", args.starts, args.tokens.shape[0], args.tokens.shape[1]);
}

}  // namespace tessera
