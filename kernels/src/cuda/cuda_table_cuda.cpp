#include "cuda/cuda_kernels.h"

// The kernels of the CUDA backend, which exports this table by name.
namespace tessera {
namespace {

const KernelTable& cuda_table() {
  static const KernelTable table{
      .gemm = cuda::gemm,
      .bias_gradient = cuda::bias_gradient,
      .layer_norm_forward = cuda::layer_norm_forward,
      .layer_norm_backward = cuda::layer_norm_backward,
      .gelu_forward = cuda::gelu_forward,
      .gelu_backward = cuda::gelu_backward,
      .silu_forward = cuda::silu_forward,
      .silu_backward = cuda::silu_backward,
      .relu_forward = cuda::relu_forward,
      .relu_backward = cuda::relu_backward,
      .swiglu_forward = cuda::swiglu_forward,
      .swiglu_backward = cuda::swiglu_backward,
      .soft_cap = cuda::soft_cap,
      .scale_columns_forward = cuda::scale_columns_forward,
      .scale_columns_backward = cuda::scale_columns_backward,
      .heads_forward = cuda::heads_forward,
      .heads_backward = cuda::heads_backward,
      .multiply = cuda::multiply,
      .softmax_forward = cuda::softmax_forward,
      .softmax_backward = cuda::softmax_backward,
      .mean_rows_forward = cuda::mean_rows_forward,
      .mean_rows_backward = cuda::mean_rows_backward,
      .attention_forward = cuda::attention_forward,
      .attention_backward = cuda::attention_backward,
      .cached_attention = cuda::cached_attention,
      .embedding_forward = cuda::embedding_forward,
      .embedding_backward = cuda::embedding_backward,
      .dropout = cuda::dropout,
      .cross_entropy = cuda::cross_entropy,
      .squared_error = cuda::squared_error,
      .optimizer_step = cuda::optimizer_step,
      .factored_squares = cuda::factored_squares,
      .factored_moments = cuda::factored_moments,
      .factored_update_squares = cuda::factored_update_squares,
      .factored_step = cuda::factored_step,
      .exact_squares = cuda::exact_squares,
      .exact_sum = cuda::exact_sum,
      .loss_scale = cuda::loss_scale,
      .step_results = cuda::step_results,
      .find_non_finite = cuda::find_non_finite,
      .update_loss_scaler = cuda::update_loss_scaler,
      .ordered_sum = cuda::ordered_sum,
      .cast = cuda::cast,
      .add = cuda::add,
      .fill = cuda::fill,
      .dequantize = cuda::dequantize,
      .fill_normal = cuda::fill_normal,
      .amax = cuda::amax,
      .max_words = cuda::max_words,
      .fp8_encode = cuda::fp8_encode,
      .fp8_decode = cuda::fp8_decode,
      .fp8_transpose = cuda::fp8_transpose,
      .roll_fp8_history = cuda::roll_fp8_history,
      .plan_gemm = cuda::plan_gemm,
      .plan_attention_forward = cuda::plan_attention_forward,
      .plan_attention_backward = cuda::plan_attention_backward,
  };
  return table;
}

}  // namespace
}  // namespace tessera

extern "C" __attribute__((visibility("default"))) const tessera::KernelTable*
tessera_cuda_kernels() {
  return &tessera::cuda_table();
}
