#include "elementwise_arguments.h"

#include "random_key_argument.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// `n` contiguous elements of fp32 or bf16.
void check_flat(const char* kernel, const char* name, const TensorView& view, std::int64_t n) {
  require(view.numel() == n && view.is_contiguous(), ErrorCode::kInvalidArgument, kernel, ": ",
          name, " has shape ", view.shape, ", expected ", n, " contiguous elements");
  require(view.dtype == DType::kFloat32 || view.dtype == DType::kBFloat16,
          ErrorCode::kInvalidArgument, kernel, ": ", name, " is ", to_string(view.dtype),
          ", expected fp32 or bf16");
}

/// As many contiguous elements as `like`, which is called `like_name`, and of its dtype.
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

void check_arguments(const GeluForwardArgs& args) { check_forward("gelu_forward", args.x, args.y); }

void check_arguments(const GeluBackwardArgs& args) {
  check_backward("gelu_backward", "x", args.x, args.dy, args.dx);
}

void check_arguments(const SiluForwardArgs& args) { check_forward("silu_forward", args.x, args.y); }

void check_arguments(const SiluBackwardArgs& args) {
  check_backward("silu_backward", "x", args.x, args.dy, args.dx);
}

void check_arguments(const ReluForwardArgs& args) { check_forward("relu_forward", args.x, args.y); }

void check_arguments(const ReluBackwardArgs& args) {
  check_backward("relu_backward", "y", args.y, args.dy, args.dx);
}

void check_arguments(const SwigluForwardArgs& args) {
  check_gated("swiglu_forward", args.x, "y", args.y);
}

void check_arguments(const SwigluBackwardArgs& args) {
  check_gated("swiglu_backward", args.x, "dy", args.dy);
  check_like("swiglu_backward", "x", args.x, "dx", args.dx);
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
  require(args.wte.data != nullptr || args.x.numel() == 0, ErrorCode::kInvalidArgument,
          "embedding_forward: there is no wte");
  require(args.x.dtype == args.wte.dtype && (!args.wpe || args.x.dtype == args.wpe.dtype),
          ErrorCode::kInvalidArgument, "embedding_forward: x, wte and wpe differ in dtype");
}

void check_arguments(const EmbeddingBackwardArgs& args) {
  check_embedding("embedding_backward", args.tokens, args.dx, args.dwte, args.dwpe);
}

}  // namespace tessera
