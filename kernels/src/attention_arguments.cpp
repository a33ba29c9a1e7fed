#include "attention_arguments.h"

#include "documents_argument.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

void check(const TensorView& view, const char* name, Shape shape, DType dtype) {
  require(view.shape == shape && view.dtype == dtype, ErrorCode::kInvalidArgument,
          "attention: ", name, " is ", view.shape, " of ", to_string(view.dtype), ", wanted ",
          shape, " of ", to_string(dtype));
  require(view.is_contiguous(), ErrorCode::kInvalidArgument, "attention: ", name,
          " is not contiguous");
}

/// Checks what both passes share.
void check_common(const TensorView& qkv, const TensorView& out, const TensorView& lse,
                  std::int64_t window, const AttentionScores& scores) {
  check_scores("attention", scores);
  require(window >= 0, ErrorCode::kInvalidArgument, "attention: a window of ", window);
  require(qkv.shape.rank() == 5 && qkv.shape[2] == 3, ErrorCode::kInvalidArgument,
          "attention: qkv is ", qkv.shape, ", wanted (B, L, 3, H, D)");
  require(is_compute_dtype(qkv.dtype), ErrorCode::kInvalidArgument, "attention: unsupported dtype ",
          to_string(qkv.dtype));
  require(qkv.is_contiguous(), ErrorCode::kInvalidArgument, "attention: qkv is not contiguous");
  const std::int64_t batch = qkv.shape[0], length = qkv.shape[1], heads = qkv.shape[3];
  check(out, "out", Shape{batch, length, heads, qkv.shape[4]}, qkv.dtype);
  check(lse, "lse", Shape{batch, heads, length}, DType::kFloat32);
}

void check_causal(bool causal, std::int64_t window) {
  require(causal || window == 0, ErrorCode::kInvalidArgument,
          "attention: a window is of causal attention, and this is not causal");
}

}  // namespace

void check_scores(const char* kernel, const AttentionScores& scores) {
  require(scores.scale >= 0.0F && scores.soft_cap >= 0.0F, ErrorCode::kInvalidArgument, kernel,
          ": scores are scaled by ", scores.scale, " and capped at ", scores.soft_cap,
          "; neither may be negative");
}

void check_attention(const AttentionForwardArgs& args) {
  check_common(args.qkv, args.out, args.lse, args.window, args.scores);
  check_starts("attention", args.starts, args.qkv.shape[0], args.qkv.shape[1]);
  check_causal(args.causal, args.window);
}

void check_attention(const AttentionBackwardArgs& args) {
  check_common(args.qkv, args.out, args.lse, args.window, args.scores);
  check(args.d_out, "d_out", args.out.shape, args.qkv.dtype);
  check(args.d_qkv, "d_qkv", args.qkv.shape, args.qkv.dtype);
  check_starts("attention", args.starts, args.qkv.shape[0], args.qkv.shape[1]);
  check_causal(args.causal, args.window);
}

}  // namespace tessera
