#include "cached_attention_arguments.h"

#include "attention_arguments.h"
#include "tessera/core/error.h"

namespace tessera {

CachedAttentionSizes check_cached_attention(const CachedAttentionArgs& args) {
  const Shape &qkv = args.qkv.shape, &keys = args.keys.shape;
  const bool fit = qkv.rank() == 4 && qkv[1] == 3 && keys.rank() == 3 &&
                   keys == args.values.shape && keys[2] == qkv[3] && keys[1] >= qkv[0] &&
                   keys[0] >= 1 && qkv[2] % keys[0] == 0;
  require(fit, ErrorCode::kInvalidArgument, "cached_attention: qkv is ", qkv, ", keys ", keys,
          " and values ", args.values.shape,
          ", wanted (N, 3, H, D) and (K, S, D) with K a divisor of H and S at least N");
  const DType dtype = args.qkv.dtype;
  const auto has_rows = [&](const TensorView& cache) {
    return cache.dtype == dtype && cache.strides[2] == 1 && cache.strides[1] == keys[2];
  };
  require(is_compute_dtype(dtype) && args.qkv.is_contiguous() && has_rows(args.keys) &&
              has_rows(args.values),
          ErrorCode::kInvalidArgument, "cached_attention: qkv is of ", to_string(dtype),
          ", keys of ", to_string(args.keys.dtype), " and values of ", to_string(args.values.dtype),
          ", wanted all of fp32, of bf16 or of fp16, qkv and the rows of a head contiguous");
  require(!args.out || (args.out.shape == Shape{qkv[0], qkv[2], qkv[3]} &&
                        args.out.dtype == dtype && args.out.is_contiguous()),
          ErrorCode::kInvalidArgument, "cached_attention: out is ", args.out.shape, " of ",
          to_string(args.out.dtype), ", wanted ", Shape{qkv[0], qkv[2], qkv[3]}, " of ",
          to_string(dtype));
  require(qkv[3] <= kMaxHeadWidth && args.window >= 0, ErrorCode::kInvalidArgument,
          "cached_attention: heads of ", qkv[3], " channels and a window of ", args.window,
          "; wanted at most ", kMaxHeadWidth, " channels");
  check_scores("cached_attention", args.scores);
  return {.rows = qkv[0],
          .length = keys[1],
          .heads = qkv[2],
          .kv_heads = keys[0],
          .width = qkv[3],
          .window = args.window == 0 ? keys[1] : args.window};
}

}  // namespace tessera
