#include <memory>
#include <vector>

#include "kernels/device_copies.h"
#include "kernels/under_test.h"
#include "tessera/core/cuda_device.h"

namespace tessera {
namespace {

CudaDevice& device() {
  static const std::unique_ptr<CudaDevice> device = make_cuda_device();
  return *device;
}

Stream& the_stream() {
  static const std::unique_ptr<Stream> stream = device().create_stream({.name = "test"});
  return *stream;
}

/// The kernel on copies of its views, run to its end: what a test does next is to look at host
/// memory.
template <auto kKernel>
constexpr auto on_device = [](const auto& args, Stream& stream) {
  auto moved = args;
  DeviceCopies copies(views_of(moved), stream);
  (device().kernels().*kKernel)(moved, stream);
  copies.copy_back();
};

/// The same for one that also takes a span of views.
template <auto kKernel, auto kSpan>
constexpr auto span_on_device = [](const auto& args, Stream& stream) {
  auto moved = args;
  std::vector<TensorView> spanned((args.*kSpan).begin(), (args.*kSpan).end());
  moved.*kSpan = spanned;
  Views views = views_of(moved);
  for (TensorView& view : spanned) views.push_back(&view);
  DeviceCopies copies(views, stream);
  (device().kernels().*kKernel)(moved, stream);
  copies.copy_back();
};

const KernelTable& on_device_table() {
  static const KernelTable table{
      .gemm = on_device<&KernelTable::gemm>,
      .bias_gradient = on_device<&KernelTable::bias_gradient>,
      .layer_norm_forward = on_device<&KernelTable::layer_norm_forward>,
      .layer_norm_backward = on_device<&KernelTable::layer_norm_backward>,
      .gelu_forward = on_device<&KernelTable::gelu_forward>,
      .gelu_backward = on_device<&KernelTable::gelu_backward>,
      .silu_forward = on_device<&KernelTable::silu_forward>,
      .silu_backward = on_device<&KernelTable::silu_backward>,
      .relu_forward = on_device<&KernelTable::relu_forward>,
      .relu_backward = on_device<&KernelTable::relu_backward>,
      .swiglu_forward = on_device<&KernelTable::swiglu_forward>,
      .swiglu_backward = on_device<&KernelTable::swiglu_backward>,
      .soft_cap = on_device<&KernelTable::soft_cap>,
      .scale_columns_forward = on_device<&KernelTable::scale_columns_forward>,
      .scale_columns_backward = on_device<&KernelTable::scale_columns_backward>,
      .heads_forward = on_device<&KernelTable::heads_forward>,
      .heads_backward = on_device<&KernelTable::heads_backward>,
      .multiply = on_device<&KernelTable::multiply>,
      .softmax_forward = on_device<&KernelTable::softmax_forward>,
      .softmax_backward = on_device<&KernelTable::softmax_backward>,
      .mean_rows_forward = on_device<&KernelTable::mean_rows_forward>,
      .mean_rows_backward = on_device<&KernelTable::mean_rows_backward>,
      .attention_forward = on_device<&KernelTable::attention_forward>,
      .attention_backward = on_device<&KernelTable::attention_backward>,
      .cached_attention = on_device<&KernelTable::cached_attention>,
      .embedding_forward = on_device<&KernelTable::embedding_forward>,
      .embedding_backward = on_device<&KernelTable::embedding_backward>,
      .dropout = on_device<&KernelTable::dropout>,
      .cross_entropy = on_device<&KernelTable::cross_entropy>,
      .squared_error = on_device<&KernelTable::squared_error>,
      .optimizer_step = span_on_device<&KernelTable::optimizer_step, &OptimizerStepArgs::states>,
      .factored_squares = on_device<&KernelTable::factored_squares>,
      .factored_moments = on_device<&KernelTable::factored_moments>,
      .factored_update_squares = on_device<&KernelTable::factored_update_squares>,
      .factored_step = on_device<&KernelTable::factored_step>,
      .exact_squares = on_device<&KernelTable::exact_squares>,
      .exact_sum = on_device<&KernelTable::exact_sum>,
      .loss_scale = on_device<&KernelTable::loss_scale>,
      .step_results = on_device<&KernelTable::step_results>,
      .find_non_finite = on_device<&KernelTable::find_non_finite>,
      .update_loss_scaler = on_device<&KernelTable::update_loss_scaler>,
      .ordered_sum = span_on_device<&KernelTable::ordered_sum, &OrderedSumArgs::sources>,
      .cast = on_device<&KernelTable::cast>,
      .add = on_device<&KernelTable::add>,
      .fill = on_device<&KernelTable::fill>,
      .dequantize = on_device<&KernelTable::dequantize>,
      .fill_normal = on_device<&KernelTable::fill_normal>,
      .amax = on_device<&KernelTable::amax>,
      .max_words = on_device<&KernelTable::max_words>,
      .fp8_encode = on_device<&KernelTable::fp8_encode>,
      .fp8_decode = on_device<&KernelTable::fp8_decode>,
      .fp8_transpose = on_device<&KernelTable::fp8_transpose>,
      .roll_fp8_history = on_device<&KernelTable::roll_fp8_history>,
      .plan_gemm = on_device<&KernelTable::plan_gemm>,
      .plan_attention_forward = on_device<&KernelTable::plan_attention_forward>,
      .plan_attention_backward = on_device<&KernelTable::plan_attention_backward>,
  };
  return table;
}

}  // namespace

const KernelTable& kernels_under_test() { return on_device_table(); }

bool testing_cuda() { return true; }

StreamUnderTest::StreamUnderTest() : stream_(the_stream()) {}

}  // namespace tessera
