#include "cuda_attention_sizes.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/kernels/cuda_options.h"

namespace tessera {
namespace {

/// Shapes of training are multiples of this. Generation meets every length once, which is not worth
/// a plan.
constexpr std::int64_t kLengthStep = 64;
constexpr std::int64_t kFloatBytes = sizeof(float);
/// Bytes that cuDNN keeps besides, and those that it takes to align three pieces.
constexpr std::int64_t kCounters = 4096;

/// The most that cuDNN's pass takes: a few counters forward; backward also delta, and either two
/// bytes per score, or an accumulator, of which Ampere has a second one.
/// tests/cudnn/attention_plans.cpp holds its plans to that.
std::int64_t cudnn_bytes(const CudaAttentionCall& call, bool deterministic) {
  if (!call.backward) return kCounters;
  const std::int64_t rows = call.batch * call.heads * call.length;
  const std::int64_t sums =
      deterministic ? 2 * rows * call.length : 2 * rows * call.head_dim * kFloatBytes;
  return kCounters + rows * kFloatBytes + sums;
}

/// The largest batch whose backward pass is within the limit on scratch; 0: none is.
std::int64_t largest_batch(CudaAttentionCall call, const CudaKernelOptions& options) {
  call.batch = 1;
  const std::int64_t of_each = cudnn_bytes(call, options.deterministic) - kCounters;
  return std::max<std::int64_t>(options.attention_scratch_limit - kCounters, 0) / of_each;
}

/// The statistics of our own backward pass: two numbers per query.
std::int64_t own_bytes(const CudaAttentionCall& call) {
  if (!call.backward) return 0;
  const std::int64_t tiles = (call.length + kStatisticsPadding - 1) / kStatisticsPadding;
  return 2 * call.batch * call.heads * tiles * kStatisticsPadding * kFloatBytes;
}

}  // namespace

std::string cudnn_objection(const CudaAttentionCall& call, const CudaKernelOptions& options) {
  if (call.dtype != DType::kBFloat16 && call.dtype != DType::kFloat16)
    return "cuDNN's attention takes bf16 and fp16 only";
  if (call.head_dim != 64 && call.head_dim != 128)
    return concat("cuDNN's attention is used for a head size of 64 or 128, not ", call.head_dim);
  if (call.window != 0 && call.window < call.length)
    return concat("cuDNN's attention is used without a window, and the one of ", call.window,
                  " is shorter than the length of ", call.length);
  if (call.soft_cap) return "cuDNN's attention is used without a soft cap of the scores";
  if (call.documents) return "cuDNN's attention is used without the documents of packed samples";
  if (options.attention == AttentionBackend::kCudnn) return {};  // of every length, at any price
  if (call.length % kLengthStep != 0)
    return concat("a length of ", call.length, " is no multiple of ", kLengthStep);
  const std::int64_t bytes = cudnn_bytes(call, options.deterministic);
  const std::int64_t limit = options.attention_scratch_limit;
  if (bytes <= limit) return {};
  const std::int64_t in_any_order = cudnn_bytes(call, false);
  const std::int64_t fitting = largest_batch(call, options);
  return concat("for a micro-batch of ", call.batch, " cuDNN's attention backward needs ", bytes,
                " bytes of scratch, over the limit of ", limit, "; use ",
                fitting > 0 ? concat("`micro_batch` ", fitting, " or less, ") : std::string(),
                in_any_order <= limit
                    ? concat("`deterministic_attention` false, which needs ", in_any_order, ", ")
                    : std::string(),
                "or `attention` cudnn, which has no limit");
}

std::int64_t cuda_attention_workspace_bytes(const CudaAttentionCall& call,
                                            const CudaKernelOptions& options) {
  const std::int64_t own = own_bytes(call);
  const bool asks_cudnn =
      options.attention != AttentionBackend::kOwn && cudnn_objection(call, options).empty();
  return asks_cudnn ? std::max(own, cudnn_bytes(call, options.deterministic)) : own;
}

}  // namespace tessera
