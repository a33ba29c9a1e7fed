#include "cuda/attention_cuda.h"

#include <initializer_list>

#include "attention_arguments.h"
#include "cuda/attention_cudnn_cuda.h"
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"

// The choice of attention's implementation: cuDNN (attention_cudnn_cuda.cpp), or our own kernels.
// It depends on shapes, dtypes, alignment and options alone, and the passes of one step need not
// agree: lse means the same to all.
namespace tessera::cuda {
namespace {

template <typename Args>
bool tensor_cores_take(const Args& args, std::initializer_list<TensorView> others) {
  const TensorView& qkv = args.qkv;
  const std::int64_t head_dim = qkv.shape[4];
  bool fits = (args.causal || args.scores.soft_cap == 0.0F) && qkv.dtype != DType::kFloat32 &&
              head_dim % 8 == 0 && head_dim <= kTensorCoreHeadDim && is_aligned(qkv.data, 16);
  for (const TensorView& view : others) fits = fits && is_aligned(view.data, 16);
  return fits;
}

}  // namespace

void plan_attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  check_attention(args);
  if (args.qkv.numel() > 0) plan_cudnn_attention(args, cuda_stream(stream));
}

void plan_attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  check_attention(args);
  if (args.qkv.numel() > 0) plan_cudnn_attention(args, cuda_stream(stream));
}

void attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  check_attention(args);
  if (args.qkv.numel() == 0) return;
  if (cudnn_attention_forward(args, cuda_stream(stream))) return;
  if (tensor_cores_take(args, {args.out})) {
    tensor_core_attention_forward(args, cuda_stream(stream));
  } else {
    any_attention_forward(args, cuda_stream(stream));
  }
}

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  check_attention(args);
  if (args.qkv.numel() == 0) return;
  if (cudnn_attention_backward(args, cuda_stream(stream))) return;
  if (tensor_cores_take(args, {args.out, args.d_out, args.d_qkv})) {
    tensor_core_attention_backward(args, cuda_stream(stream));
  } else {
    any_attention_backward(args, cuda_stream(stream));
  }
}

}  // namespace tessera::cuda
