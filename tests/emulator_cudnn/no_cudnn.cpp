#include "cuda/attention_cudnn_cuda.h"
#include "tessera/core/error.h"
#include "tessera/kernels/cuda_options.h"

// The emulator has no cuDNN: attention always runs on our own kernels, or fails where it must not.
namespace tessera::cuda {
namespace {

bool decline(CudaStream& stream) {
  CudaAttention& state = cuda_attention(stream);
  if (state.options.attention == AttentionBackend::kOwn) return false;
  require(state.options.attention == AttentionBackend::kAuto, ErrorCode::kUnavailable,
          "attention was to run on cuDNN only: the emulator has none");
  state.fallback = state.options.deterministic ? "the emulator has none"
                                               : "the emulator has none, nor one of any order";
  return false;
}

}  // namespace

void plan_cudnn_attention(const AttentionForwardArgs&, CudaStream& stream) { decline(stream); }
void plan_cudnn_attention(const AttentionBackwardArgs&, CudaStream& stream) { decline(stream); }

bool cudnn_attention_forward(const AttentionForwardArgs&, CudaStream& stream) {
  return decline(stream);
}
bool cudnn_attention_backward(const AttentionBackwardArgs&, CudaStream& stream) {
  return decline(stream);
}

}  // namespace tessera::cuda
