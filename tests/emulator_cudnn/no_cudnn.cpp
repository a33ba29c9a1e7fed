#include "cuda/attention_cudnn_cuda.h"
#include "tessera/core/error.h"
#include "tessera/kernels/cuda_options.h"

// The emulator has no cuDNN: attention always runs on our own kernels, or fails where it must not.
namespace tessera::cuda {
namespace {

template <typename Args>
bool decline(const Args& args, bool backward, CudaStream& stream) {
  const TensorView& qkv = args.qkv;
  CudaAttention& state = cuda_attention(stream);
  if (state.options.attention == AttentionBackend::kOwn) return false;
  state.fallback = cudnn_objection({.batch = qkv.shape[0],
                                    .length = qkv.shape[1],
                                    .heads = qkv.shape[3],
                                    .head_dim = qkv.shape[4],
                                    .dtype = qkv.dtype,
                                    .backward = backward,
                                    .window = args.window,
                                    .documents = static_cast<bool>(args.starts),
                                    .causal = args.causal,
                                    .soft_cap = args.scores.soft_cap != 0.0F},
                                   state.options);
  if (state.fallback.empty()) {
    state.fallback = state.unforeseen = state.options.deterministic
                                            ? "the emulator has none"
                                            : "the emulator has none, nor one of any order";
  }
  require(state.options.attention == AttentionBackend::kAuto, ErrorCode::kUnavailable,
          "attention was to run on cuDNN only: ", state.fallback);
  return false;
}

}  // namespace

void plan_cudnn_attention(const AttentionForwardArgs& args, CudaStream& stream) {
  decline(args, false, stream);
}
void plan_cudnn_attention(const AttentionBackwardArgs& args, CudaStream& stream) {
  decline(args, true, stream);
}

bool cudnn_attention_forward(const AttentionForwardArgs& args, CudaStream& stream) {
  return decline(args, false, stream);
}
bool cudnn_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  return decline(args, true, stream);
}

}  // namespace tessera::cuda
