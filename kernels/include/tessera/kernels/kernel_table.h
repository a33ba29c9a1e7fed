#pragma once

#include <cstdint>
#include <functional>

#include "tessera/core/device.h"
#include "tessera/kernels/factored_moments.h"
#include "tessera/kernels/fp8.h"
#include "tessera/kernels/fp8_history.h"
#include "tessera/kernels/layer_arguments.h"
#include "tessera/kernels/step_arguments.h"
#include "tessera/kernels/weight_format.h"

namespace tessera {

// Every kernel is deterministic: the same inputs and thread count give the same bits. All take
// their arguments in one struct and the stream last. On the CPU a kernel runs to its end on the
// calling thread (with the threads of the stream it was submitted to); on CUDA it is launched into
// the stream. Views are contiguous unless said otherwise. "T" below is the compute dtype: fp32,
// bf16 or, on the CPU only, fp16; arithmetic is always fp32 or better. Empty tensors are legal
// everywhere.

/// A kernel of a table: one of a device, or a test's or a recorder's that stands in for it.
template <typename Args>
using KernelFunction = std::function<void(const Args&, Stream&)>;

/// One device's kernels. A plain table: adding a kernel is an Args struct in layer_arguments.h or
/// step_arguments.h, a member here, and an entry in each device's table.
struct KernelTable {
  KernelFunction<GemmArgs> gemm;
  KernelFunction<BiasGradientArgs> bias_gradient;
  KernelFunction<LayerNormForwardArgs> layer_norm_forward;
  KernelFunction<LayerNormBackwardArgs> layer_norm_backward;
  KernelFunction<GeluForwardArgs> gelu_forward;
  KernelFunction<GeluBackwardArgs> gelu_backward;
  KernelFunction<SiluForwardArgs> silu_forward;
  KernelFunction<SiluBackwardArgs> silu_backward;
  KernelFunction<ReluForwardArgs> relu_forward;
  KernelFunction<ReluBackwardArgs> relu_backward;
  KernelFunction<SwigluForwardArgs> swiglu_forward;
  KernelFunction<SwigluBackwardArgs> swiglu_backward;
  KernelFunction<SoftCapArgs> soft_cap;
  KernelFunction<ScaleColumnsForwardArgs> scale_columns_forward;
  KernelFunction<ScaleColumnsBackwardArgs> scale_columns_backward;
  KernelFunction<HeadsForwardArgs> heads_forward;
  KernelFunction<HeadsBackwardArgs> heads_backward;
  KernelFunction<MultiplyArgs> multiply;
  KernelFunction<SoftmaxForwardArgs> softmax_forward;
  KernelFunction<SoftmaxBackwardArgs> softmax_backward;
  KernelFunction<MeanRowsForwardArgs> mean_rows_forward;
  KernelFunction<MeanRowsBackwardArgs> mean_rows_backward;
  KernelFunction<AttentionForwardArgs> attention_forward;
  KernelFunction<AttentionBackwardArgs> attention_backward;
  KernelFunction<CachedAttentionArgs> cached_attention;
  KernelFunction<EmbeddingForwardArgs> embedding_forward;
  KernelFunction<EmbeddingBackwardArgs> embedding_backward;
  KernelFunction<DropoutArgs> dropout;
  KernelFunction<CrossEntropyArgs> cross_entropy;
  KernelFunction<SquaredErrorArgs> squared_error;
  KernelFunction<OptimizerStepArgs> optimizer_step;
  KernelFunction<FactoredSquaresArgs> factored_squares;
  KernelFunction<FactoredMomentsArgs> factored_moments;
  KernelFunction<FactoredUpdateSquaresArgs> factored_update_squares;
  KernelFunction<FactoredStepArgs> factored_step;
  KernelFunction<ExactSquaresArgs> exact_squares;
  KernelFunction<ExactSumArgs> exact_sum;
  KernelFunction<LossScaleArgs> loss_scale;
  KernelFunction<StepResultsArgs> step_results;
  KernelFunction<FindNonFiniteArgs> find_non_finite;
  KernelFunction<UpdateLossScalerArgs> update_loss_scaler;
  KernelFunction<OrderedSumArgs> ordered_sum;
  KernelFunction<CastArgs> cast;
  KernelFunction<AddArgs> add;
  KernelFunction<FillArgs> fill;
  KernelFunction<DequantizeArgs> dequantize;
  KernelFunction<FillNormalArgs> fill_normal;
  KernelFunction<AmaxArgs> amax;
  KernelFunction<MaxWordsArgs> max_words;
  KernelFunction<Fp8EncodeArgs> fp8_encode;
  KernelFunction<Fp8DecodeArgs> fp8_decode;
  KernelFunction<Fp8TransposeArgs> fp8_transpose;
  KernelFunction<RollFp8HistoryArgs> roll_fp8_history;

  // Library work done once for a problem, so that no step has to: choose an algorithm, compile a
  // kernel. A call with these arguments finds it done; nothing is launched, and of addresses only
  // the alignment counts.
  KernelFunction<GemmArgs> plan_gemm;
  KernelFunction<AttentionForwardArgs> plan_attention_forward;
  KernelFunction<AttentionBackwardArgs> plan_attention_backward;
};

/// A table that plans what `kernels` would run, and does nothing else: work that goes over it first
/// finds all plans made.
KernelTable planning(const KernelTable& kernels);

/// Scratch that attention on the CPU needs for these sizes: a pure function, the same on every
/// machine, so that a plan made without a device knows it. For CUDA see cuda_options.h.
std::int64_t attention_workspace_bytes(std::int64_t batch, std::int64_t length, std::int64_t heads,
                                       std::int64_t head_dim, DType dtype, int threads);

/// The CPU's table, for code that works on host memory and has no Device at hand.
const KernelTable& cpu_kernels();

/// The table of a device. The sim device's kernels do nothing.
const KernelTable& kernels_for(const Device& device);

}  // namespace tessera
