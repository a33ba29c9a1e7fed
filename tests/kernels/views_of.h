#pragma once

#include <vector>

#include "tessera/kernels/kernel_table.h"

// The views among a kernel's arguments. One that is forgotten here stays in the host's memory,
// where a GPU faults.
namespace tessera {

using Views = std::vector<TensorView*>;

inline Views views_of(GemmArgs& a) {
  return {&a.a,
          &a.b,
          &a.c,
          &a.bias,
          &a.residual,
          &a.gelu_input,
          &a.gelu_backward_input,
          &a.a_fp8.amax,
          &a.b_fp8.amax};
}
inline Views views_of(BiasGradientArgs& a) { return {&a.dy, &a.db}; }
inline Views views_of(LayerNormForwardArgs& a) {
  return {&a.x, &a.residual, &a.sum, &a.gamma, &a.beta, &a.y, &a.mean, &a.rstd, &a.amax};
}
inline Views views_of(LayerNormBackwardArgs& a) {
  return {&a.dy, &a.x,      &a.mean,  &a.rstd, &a.gamma,  &a.d_residual,
          &a.dx, &a.dgamma, &a.dbeta, &a.amax, &a.dx_sums};
}
inline Views views_of(GeluForwardArgs& a) { return {&a.x, &a.y, &a.amax}; }
inline Views views_of(GeluBackwardArgs& a) { return {&a.x, &a.dy, &a.dx, &a.amax}; }
inline Views views_of(SiluForwardArgs& a) { return {&a.x, &a.y}; }
inline Views views_of(SiluBackwardArgs& a) { return {&a.x, &a.dy, &a.dx}; }
inline Views views_of(ReluForwardArgs& a) { return {&a.x, &a.y}; }
inline Views views_of(ReluBackwardArgs& a) { return {&a.y, &a.dy, &a.dx}; }
inline Views views_of(MultiplyArgs& a) { return {&a.a, &a.b, &a.y}; }
inline Views views_of(SoftmaxForwardArgs& a) { return {&a.x, &a.y}; }
inline Views views_of(SoftmaxBackwardArgs& a) { return {&a.y, &a.dy, &a.dx}; }
inline Views views_of(MeanRowsForwardArgs& a) { return {&a.x, &a.y}; }
inline Views views_of(MeanRowsBackwardArgs& a) { return {&a.dy, &a.dx}; }
inline Views views_of(SwigluForwardArgs& a) { return {&a.x, &a.y, &a.amax}; }
inline Views views_of(SwigluBackwardArgs& a) { return {&a.x, &a.dy, &a.dx, &a.amax}; }
inline Views views_of(SoftCapArgs& a) { return {&a.x, &a.y}; }
inline Views views_of(ScaleColumnsForwardArgs& a) { return {&a.x, &a.scale, &a.y, &a.kept}; }
inline Views views_of(ScaleColumnsBackwardArgs& a) {
  return {&a.dy, &a.x, &a.scale, &a.dx, &a.d_scale};
}
inline Views views_of(HeadsForwardArgs& a) {
  return {&a.packed, &a.qkv, &a.q_gamma, &a.k_gamma, &a.starts};
}
inline Views views_of(HeadsBackwardArgs& a) {
  return {&a.d_qkv,   &a.packed,   &a.d_packed, &a.q_gamma,
          &a.k_gamma, &a.dq_gamma, &a.dk_gamma, &a.starts};
}
inline Views views_of(AttentionForwardArgs& a) {
  return {&a.qkv, &a.out, &a.lse, &a.workspace, &a.starts};
}
inline Views views_of(AttentionBackwardArgs& a) {
  return {&a.d_out, &a.qkv, &a.out, &a.lse, &a.d_qkv, &a.workspace, &a.starts};
}
inline Views views_of(CachedAttentionArgs& a) { return {&a.qkv, &a.keys, &a.values, &a.out}; }
inline Views views_of(EmbeddingForwardArgs& a) {
  return {&a.tokens, &a.wte, &a.wpe, &a.x, &a.starts};
}
inline Views views_of(EmbeddingBackwardArgs& a) {
  return {&a.tokens, &a.dx, &a.dwte, &a.dwpe, &a.starts};
}
inline Views views_of(DropoutArgs& a) { return {&a.x, &a.y, &a.key, &a.first_sample}; }
inline Views views_of(CrossEntropyArgs& a) {
  return {&a.logits, &a.targets, &a.losses, &a.scale, &a.hits};
}
inline Views views_of(SquaredErrorArgs& a) { return {&a.x, &a.targets, &a.losses, &a.scale}; }
inline Views views_of(OptimizerStepArgs& a) {  // and `states`, which is a span
  return {&a.master,         &a.gradient, &a.parameter,   &a.scalars,
          &a.gradient_scale, &a.skip,     &a.rounding_key};
}
inline Views views_of(FactoredSquaresArgs& a) {
  return {&a.gradient, &a.gradient_scale, &a.gradient_norm, &a.sums};
}
inline Views views_of(FactoredMomentsArgs& a) {
  return {&a.gradient_norm, &a.scalars, &a.skip, &a.sums, &a.moments, &a.factors};
}
inline Views views_of(FactoredUpdateSquaresArgs& a) {
  return {&a.gradient, &a.gradient_scale, &a.factors, &a.words};
}
inline Views views_of(FactoredStepArgs& a) {
  return {&a.master,  &a.gradient,       &a.parameter,         &a.gradient_scale,
          &a.factors, &a.update_squares, &a.parameter_squares, &a.scalars,
          &a.skip,    &a.rounding_key};
}
inline Views views_of(ExactSquaresArgs& a) { return {&a.x, &a.words}; }
inline Views views_of(ExactSumArgs& a) { return {&a.x, &a.words}; }
inline Views views_of(LossScaleArgs& a) { return {&a.count, &a.scale, &a.scaler}; }
inline Views views_of(StepResultsArgs& a) {
  return {&a.losses, &a.squares, &a.results, &a.clip_factor, &a.scaler};
}
inline Views views_of(FindNonFiniteArgs& a) { return {&a.x, &a.squares, &a.scaler}; }
inline Views views_of(UpdateLossScalerArgs& a) {
  return {&a.squares, &a.scaler, &a.candidates, &a.base, &a.scalars};
}
inline Views views_of(OrderedSumArgs& a) { return {&a.dst}; }  // and `sources`, which is a span
inline Views views_of(CastArgs& a) { return {&a.src, &a.dst}; }
inline Views views_of(AddArgs& a) { return {&a.src, &a.dst}; }
inline Views views_of(DequantizeArgs& a) { return {&a.src, &a.dst}; }
inline Views views_of(FillArgs& a) { return {&a.dst, &a.factor}; }
inline Views views_of(FillNormalArgs& a) { return {&a.dst}; }
inline Views views_of(AmaxArgs& a) { return {&a.x, &a.amax}; }
inline Views views_of(MaxWordsArgs& a) { return {&a.rows, &a.words}; }
inline Views views_of(Fp8EncodeArgs& a) { return {&a.x, &a.amax, &a.codes, &a.transposed}; }
inline Views views_of(Fp8TransposeArgs& a) { return {&a.codes, &a.transposed}; }
inline Views views_of(Fp8DecodeArgs& a) { return {&a.codes, &a.amax, &a.y}; }
inline Views views_of(RollFp8HistoryArgs& a) { return {&a.newest, &a.history, &a.scale_words}; }

}  // namespace tessera
