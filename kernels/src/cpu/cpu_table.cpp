#include "cpu/cpu_kernels.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// A kernel on the sim device: nothing to compute, the stream charges the time. A plan that is not
/// needed.
constexpr auto nothing = [](const auto&, Stream&) {};

const KernelTable& cpu_table() {
  static const KernelTable table{
      .gemm = cpu::gemm,
      .bias_gradient = cpu::bias_gradient,
      .layer_norm_forward = cpu::layer_norm_forward,
      .layer_norm_backward = cpu::layer_norm_backward,
      .gelu_forward = cpu::gelu_forward,
      .gelu_backward = cpu::gelu_backward,
      .silu_forward = cpu::silu_forward,
      .silu_backward = cpu::silu_backward,
      .relu_forward = cpu::relu_forward,
      .relu_backward = cpu::relu_backward,
      .swiglu_forward = cpu::swiglu_forward,
      .swiglu_backward = cpu::swiglu_backward,
      .soft_cap = cpu::soft_cap,
      .scale_columns_forward = cpu::scale_columns_forward,
      .scale_columns_backward = cpu::scale_columns_backward,
      .heads_forward = cpu::heads_forward,
      .heads_backward = cpu::heads_backward,
      .multiply = cpu::multiply,
      .softmax_forward = cpu::softmax_forward,
      .softmax_backward = cpu::softmax_backward,
      .mean_rows_forward = cpu::mean_rows_forward,
      .mean_rows_backward = cpu::mean_rows_backward,
      .attention_forward = cpu::attention_forward,
      .attention_backward = cpu::attention_backward,
      .cached_attention = cpu::cached_attention,
      .embedding_forward = cpu::embedding_forward,
      .embedding_backward = cpu::embedding_backward,
      .dropout = cpu::dropout,
      .cross_entropy = cpu::cross_entropy,
      .squared_error = cpu::squared_error,
      .optimizer_step = cpu::optimizer_step,
      .factored_squares = cpu::factored_squares,
      .factored_moments = cpu::factored_moments,
      .factored_update_squares = cpu::factored_update_squares,
      .factored_step = cpu::factored_step,
      .exact_squares = cpu::exact_squares,
      .exact_sum = cpu::exact_sum,
      .loss_scale = cpu::loss_scale,
      .step_results = cpu::step_results,
      .find_non_finite = cpu::find_non_finite,
      .update_loss_scaler = cpu::update_loss_scaler,
      .ordered_sum = cpu::ordered_sum,
      .cast = cpu::cast,
      .add = cpu::add,
      .fill = cpu::fill,
      .dequantize = cpu::dequantize,
      .fill_normal = cpu::fill_normal,
      .amax = cpu::amax,
      .max_words = cpu::max_words,
      .fp8_encode = cpu::fp8_encode,
      .fp8_decode = cpu::fp8_decode,
      .fp8_transpose = cpu::fp8_transpose,
      .roll_fp8_history = cpu::roll_fp8_history,
      .plan_gemm = nothing,
      .plan_attention_forward = nothing,
      .plan_attention_backward = nothing,
  };
  return table;
}

/// The sim device's.
const KernelTable& sim_table() {
  static const KernelTable table{
      .gemm = nothing,
      .bias_gradient = nothing,
      .layer_norm_forward = nothing,
      .layer_norm_backward = nothing,
      .gelu_forward = nothing,
      .gelu_backward = nothing,
      .silu_forward = nothing,
      .silu_backward = nothing,
      .relu_forward = nothing,
      .relu_backward = nothing,
      .swiglu_forward = nothing,
      .swiglu_backward = nothing,
      .soft_cap = nothing,
      .scale_columns_forward = nothing,
      .scale_columns_backward = nothing,
      .heads_forward = nothing,
      .heads_backward = nothing,
      .multiply = nothing,
      .softmax_forward = nothing,
      .softmax_backward = nothing,
      .mean_rows_forward = nothing,
      .mean_rows_backward = nothing,
      .attention_forward = nothing,
      .attention_backward = nothing,
      .cached_attention = nothing,
      .embedding_forward = nothing,
      .embedding_backward = nothing,
      .dropout = nothing,
      .cross_entropy = nothing,
      .squared_error = nothing,
      .optimizer_step = nothing,
      .factored_squares = nothing,
      .factored_moments = nothing,
      .factored_update_squares = nothing,
      .factored_step = nothing,
      .exact_squares = nothing,
      .exact_sum = nothing,
      .loss_scale = nothing,
      .step_results = nothing,
      .find_non_finite = nothing,
      .update_loss_scaler = nothing,
      .ordered_sum = nothing,
      .cast = nothing,
      .add = nothing,
      .fill = nothing,
      .dequantize = nothing,
      .fill_normal = nothing,
      .amax = nothing,
      .max_words = nothing,
      .fp8_encode = nothing,
      .fp8_decode = nothing,
      .fp8_transpose = nothing,
      .roll_fp8_history = nothing,
      .plan_gemm = nothing,
      .plan_attention_forward = nothing,
      .plan_attention_backward = nothing,
  };
  return table;
}

}  // namespace

const KernelTable& cpu_kernels() { return cpu_table(); }

KernelTable planning(const KernelTable& kernels) {
  KernelTable table = sim_table();
  table.gemm = kernels.plan_gemm;
  table.attention_forward = kernels.plan_attention_forward;
  table.attention_backward = kernels.plan_attention_backward;
  return table;
}

const KernelTable& kernels_for(const Device& device) {
  switch (device.kind()) {
    case DeviceKind::kCpu:
      return cpu_table();
    case DeviceKind::kSim:
      return sim_table();
    case DeviceKind::kCuda:
      return dynamic_cast<const CudaDevice&>(device).kernels();
  }
  fail(ErrorCode::kInternal, "a device of no known kind");
}

}  // namespace tessera
