#include "cuda/attention_cudnn_cuda.h"
#include "tessera/kernels/cuda_options.h"

// The emulator has no cuDNN: attention always runs on our own kernels.
namespace tessera::cuda {
namespace {

bool decline(CudaStream& stream) {
  cuda_attention(stream).fallback = "the emulator has none";
  return false;
}

}  // namespace

bool cudnn_attention_forward(const AttentionForwardArgs&, CudaStream& stream) {
  return decline(stream);
}
bool cudnn_attention_backward(const AttentionBackwardArgs&, CudaStream& stream) {
  return decline(stream);
}

}  // namespace tessera::cuda
