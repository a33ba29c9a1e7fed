#include "attention_cudnn_cuda.h"

// The emulator has no cuDNN: attention always runs on our own kernels.
namespace tessera::cuda {

bool cudnn_attention_forward(const AttentionForwardArgs&, CudaStream&) { return false; }
bool cudnn_attention_backward(const AttentionBackwardArgs&, CudaStream&) { return false; }

}  // namespace tessera::cuda
