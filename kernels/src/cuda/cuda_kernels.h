#pragma once

#include "tessera/kernels/kernel_table.h"

// The CUDA kernels, one or more files per family (<name>_cuda.cu); cuda_table_cuda.cpp lists them.
// Each launches into the stream, which must be a CudaStream, and returns; what it reads and writes
// is device memory.
namespace tessera::cuda {

void gemm(const GemmArgs&, Stream&);
void bias_gradient(const BiasGradientArgs&, Stream&);
void layer_norm_forward(const LayerNormForwardArgs&, Stream&);
void layer_norm_backward(const LayerNormBackwardArgs&, Stream&);
void gelu_forward(const GeluForwardArgs&, Stream&);
void gelu_backward(const GeluBackwardArgs&, Stream&);
void silu_forward(const SiluForwardArgs&, Stream&);
void silu_backward(const SiluBackwardArgs&, Stream&);
void relu_forward(const ReluForwardArgs&, Stream&);
void relu_backward(const ReluBackwardArgs&, Stream&);
void swiglu_forward(const SwigluForwardArgs&, Stream&);
void swiglu_backward(const SwigluBackwardArgs&, Stream&);
void soft_cap(const SoftCapArgs&, Stream&);
void scale_columns_forward(const ScaleColumnsForwardArgs&, Stream&);
void scale_columns_backward(const ScaleColumnsBackwardArgs&, Stream&);
void heads_forward(const HeadsForwardArgs&, Stream&);
void heads_backward(const HeadsBackwardArgs&, Stream&);
void multiply(const MultiplyArgs&, Stream&);
void softmax_forward(const SoftmaxForwardArgs&, Stream&);
void softmax_backward(const SoftmaxBackwardArgs&, Stream&);
void mean_rows_forward(const MeanRowsForwardArgs&, Stream&);
void mean_rows_backward(const MeanRowsBackwardArgs&, Stream&);
void attention_forward(const AttentionForwardArgs&, Stream&);
void attention_backward(const AttentionBackwardArgs&, Stream&);
void cached_attention(const CachedAttentionArgs&, Stream&);
void embedding_forward(const EmbeddingForwardArgs&, Stream&);
void embedding_backward(const EmbeddingBackwardArgs&, Stream&);
void dropout(const DropoutArgs&, Stream&);
void cross_entropy(const CrossEntropyArgs&, Stream&);
void squared_error(const SquaredErrorArgs&, Stream&);
void optimizer_step(const OptimizerStepArgs&, Stream&);
void factored_squares(const FactoredSquaresArgs&, Stream&);
void factored_moments(const FactoredMomentsArgs&, Stream&);
void factored_update_squares(const FactoredUpdateSquaresArgs&, Stream&);
void factored_step(const FactoredStepArgs&, Stream&);
void exact_squares(const ExactSquaresArgs&, Stream&);
void exact_sum(const ExactSumArgs&, Stream&);
void loss_scale(const LossScaleArgs&, Stream&);
void step_results(const StepResultsArgs&, Stream&);
void find_non_finite(const FindNonFiniteArgs&, Stream&);
void update_loss_scaler(const UpdateLossScalerArgs&, Stream&);
void ordered_sum(const OrderedSumArgs&, Stream&);
void cast(const CastArgs&, Stream&);
void add(const AddArgs&, Stream&);
void fill(const FillArgs&, Stream&);
void dequantize(const DequantizeArgs&, Stream&);
void fill_normal(const FillNormalArgs&, Stream&);
void amax(const AmaxArgs&, Stream&);
void max_words(const MaxWordsArgs&, Stream&);
void fp8_encode(const Fp8EncodeArgs&, Stream&);
void fp8_decode(const Fp8DecodeArgs&, Stream&);
void fp8_transpose(const Fp8TransposeArgs&, Stream&);
void roll_fp8_history(const RollFp8HistoryArgs&, Stream&);

// Without a launch: see KernelTable.
void plan_gemm(const GemmArgs&, Stream&);
void plan_attention_forward(const AttentionForwardArgs&, Stream&);
void plan_attention_backward(const AttentionBackwardArgs&, Stream&);

}  // namespace tessera::cuda
