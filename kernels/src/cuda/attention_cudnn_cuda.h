#pragma once

#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::cuda {

/// Runs the pass by cuDNN if the stream's options and the shape allow it; false if our own kernels
/// must, with the reason in CudaAttention::fallback. Throws Error{kUnavailable} with that reason if
/// the options insist on cuDNN.
bool cudnn_attention_forward(const AttentionForwardArgs& args, CudaStream& stream);
bool cudnn_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream);

/// Makes the plan that the pass will find, if it will run by cuDNN. Throws as the pass would.
void plan_cudnn_attention(const AttentionForwardArgs& args, CudaStream& stream);
void plan_cudnn_attention(const AttentionBackwardArgs& args, CudaStream& stream);

}  // namespace tessera::cuda
