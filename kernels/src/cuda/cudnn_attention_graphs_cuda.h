#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "cuda/cudnn_graph_cuda.h"
#include "tessera/core/dtype.h"

// Attention as graphs that cuDNN recognises and runs as one fused kernel each.
namespace tessera::cuda {

enum class CudnnPass : std::uint8_t { kForward, kBackward, kBackwardDeterministic };

/// The shape that a plan is made for: packed qkv as in AttentionForwardArgs.
struct CudnnAttentionShape {
  std::int64_t batch = 0, length = 0, heads = 0, head_dim = 0;
  CudnnPass pass = CudnnPass::kForward;
  DType dtype = DType::kBFloat16;  ///< or kFloat16
  bool causal = true;
  float scale = 0.0F;  ///< as in AttentionScores

  auto operator<=>(const CudnnAttentionShape&) const = default;
  /// Elements of what there is one of per query.
  std::int64_t rows() const { return batch * heads * length; }
};

/// Ids of the tensors in memory. kLse is natural: max + log(sum), as AttentionForwardArgs::lse.
enum CudnnAttentionTensor : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kDelta,          ///< (B, H, L) fp32, scratch of the backward passes
  kDQAccumulator,  ///< (B, H, L, D) fp32, scratch of kBackward; need not be zeroed
};

/// Takes 0.3 to 0.7 s: cuDNN compiles a kernel. Throws Error{kUnavailable} if there is no engine.
std::unique_ptr<CudnnPlan> make_cudnn_attention_plan(const CudnnLibrary& library,
                                                     const CudnnTarget& target,
                                                     const CudnnAttentionShape& shape);

}  // namespace tessera::cuda
