#include "heads_arguments.h"

#include "documents_argument.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

HeadsSizes sizes_of(const TensorView& packed, const char* name, const TensorView& qkv,
                    std::size_t frequencies) {
  const bool fit = packed.shape.rank() == 4 && qkv.shape.rank() == 5 && qkv.shape[2] == 3 &&
                   packed.shape[0] == qkv.shape[0] && packed.shape[1] == qkv.shape[1] &&
                   packed.shape[3] == qkv.shape[4];
  const std::int64_t heads = fit ? qkv.shape[3] : 0;
  const std::int64_t rest = fit ? packed.shape[2] - heads : 0;
  require(fit && rest >= 2 && rest % 2 == 0 && heads % (rest / 2) == 0, ErrorCode::kInvalidArgument,
          "heads: ", name, " is ", packed.shape, " and qkv ", qkv.shape,
          ", wanted (B, L, H + 2 K, D) and (B, L, 3, H, D) with K a divisor of H");
  require(is_compute_dtype(qkv.dtype) && packed.dtype == qkv.dtype && packed.is_contiguous() &&
              qkv.is_contiguous(),
          ErrorCode::kInvalidArgument, "heads: ", name, " is of ", to_string(packed.dtype),
          " and qkv of ", to_string(qkv.dtype),
          ", wanted both contiguous, of fp32, of bf16 or of fp16");
  const HeadsSizes sizes{.rows = packed.shape[0] * packed.shape[1],
                         .length = packed.shape[1],
                         .heads = heads,
                         .kv_heads = rest / 2,
                         .width = packed.shape[3],
                         .angles = static_cast<std::int64_t>(frequencies)};
  require(sizes.width <= kMaxHeadWidth && 2 * sizes.angles <= sizes.width,
          ErrorCode::kInvalidArgument, "heads: ", sizes.angles, " frequencies for a head of ",
          sizes.width, " channels; wanted at most half as many, and at most ", kMaxHeadWidth,
          " channels");
  return sizes;
}

void check_norms(const TensorView& q_gamma, const TensorView& k_gamma, const TensorView& qkv) {
  require(static_cast<bool>(q_gamma) == static_cast<bool>(k_gamma), ErrorCode::kInvalidArgument,
          "heads: give both q_gamma and k_gamma, or none");
  if (!q_gamma) return;
  for (const TensorView* gamma : {&q_gamma, &k_gamma}) {
    require(gamma->numel() == qkv.shape[4] && gamma->is_contiguous() && gamma->dtype == qkv.dtype,
            ErrorCode::kInvalidArgument, "heads: a gamma is ", gamma->shape, " of ",
            to_string(gamma->dtype), ", wanted ", qkv.shape[4], " elements of ",
            to_string(qkv.dtype));
  }
}

}  // namespace

HeadsSizes check_heads(const HeadsForwardArgs& args) {
  check_norms(args.q_gamma, args.k_gamma, args.qkv);
  check_starts("heads", args.starts, args.qkv.shape[0], args.qkv.shape[1]);
  return sizes_of(args.packed, "packed", args.qkv, args.frequencies.size());
}

HeadsSizes check_heads(const HeadsBackwardArgs& args) {
  const HeadsSizes sizes = sizes_of(args.d_packed, "d_packed", args.d_qkv, args.frequencies.size());
  check_norms(args.q_gamma, args.k_gamma, args.d_qkv);
  check_starts("heads", args.starts, args.d_qkv.shape[0], args.d_qkv.shape[1]);
  require(
      !args.q_gamma || (args.packed.shape == args.d_packed.shape &&
                        args.packed.dtype == args.d_packed.dtype && args.packed.is_contiguous()),
      ErrorCode::kInvalidArgument, "heads: packed is ", args.packed.shape, " of ",
      to_string(args.packed.dtype), ", wanted ", args.d_packed.shape, " of ",
      to_string(args.d_packed.dtype));
  require(static_cast<bool>(args.dq_gamma) == static_cast<bool>(args.dk_gamma) &&
              (!args.dq_gamma || args.q_gamma),
          ErrorCode::kInvalidArgument,
          "heads: give both dq_gamma and dk_gamma, with their gammas, or none");
  if (!args.dq_gamma) return sizes;
  for (const TensorView* gradient : {&args.dq_gamma, &args.dk_gamma}) {
    require(gradient->numel() == sizes.width && gradient->is_contiguous() &&
                gradient->dtype == args.dq_gamma.dtype && is_compute_dtype(gradient->dtype),
            ErrorCode::kInvalidArgument, "heads: a gradient of gamma is ", gradient->shape, " of ",
            to_string(gradient->dtype), ", wanted ", sizes.width,
            " contiguous elements, both of fp32, of bf16 or of fp16");
  }
  return sizes;
}

}  // namespace tessera
