#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "tessera/core/device.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/loss_scaler.h"
#include "tessera/kernels/weight_format.h"

namespace tessera {

// Every kernel is deterministic: the same inputs and thread count give the same bits. All take
// their arguments in one struct and the stream last. On the CPU a kernel runs to its end on the
// calling thread (with the threads of the stream it was submitted to); on CUDA it is launched into
// the stream. Views are contiguous unless said otherwise. "T" below is the compute dtype: fp32,
// bf16 or, on the CPU only, fp16; arithmetic is always fp32 or better. Empty tensors are legal
// everywhere.

/// C (M, N) = op(A) op(B) [+ bias] [+ C or residual].  op(A) is (M, K), op(B) is (K, N).
///
/// Work that follows or accompanies a GEMM in a linear layer may be asked for along with it, as
/// AddArgs, GeluForwardArgs, GeluBackwardArgs and BiasGradientArgs describe it; devices that can,
/// do it while the data is at hand. The CPU rounds in between to T, as separate kernels would; CUDA
/// may not.
struct GemmArgs {
  TensorView a{};     // (M, K), or (K, M) if transpose_a; T; rows may be strided
  TensorView b{};     // (K, N), or (N, K) if transpose_b; T; rows may be strided
  TensorView c{};     // (M, N); fp32 or T; rows may be strided
  TensorView bias{};  // (N); T; optional
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  ///< add to C instead of overwriting it
  /// (M, N); C's dtype; contiguous, as C is; optional: added, without overlapping C. Alone: without
  /// accumulate, GELU, its derivative and bias gradient.
  TensorView residual{};

  bool gelu = false;  ///< C = gelu(op(A) op(B) + bias); C contiguous, of T; not with accumulate
  TensorView gelu_input{};  // (M, N); T; optional, with gelu: receives op(A) op(B) + bias
  /// (M, N); T; optional: C = (op(A) op(B)) * gelu'(gelu_backward_input); C contiguous, of T;
  /// without bias, accumulate and gelu.
  TensorView gelu_backward_input{};
  /// (M); fp32, bf16 or fp16; optional, with transpose_a and contiguous A: receives the column sums
  /// of A as stored, (K, M), which is the gradient of a bias when A is that of a linear layer's
  /// output.
  TensorView bias_gradient{};
  bool accumulate_bias_gradient = false;  ///< add to bias_gradient instead of overwriting it
};

/// db (N) [+]= column sums of dy (M, N).
struct BiasGradientArgs {
  TensorView dy{};  // (M, N); T
  TensorView db{};  // (N); fp32, bf16 or fp16
  bool accumulate = false;
};

/// y = (s - mean) / sqrt(var + epsilon) * gamma + beta over the last dimension, with
/// s = x + residual written to `sum` when a residual is given (s = x otherwise).
/// Without beta and mean it is the RMS norm (Zhang and Sennrich 2019), y = s / sqrt(mean(s^2) +
/// epsilon) * gamma.
struct LayerNormForwardArgs {
  TensorView x{};              // (rows, C); T
  TensorView residual{};       // (rows, C); T; optional
  TensorView sum{};            // (rows, C); T; with residual; may alias x or residual
  TensorView gamma{}, beta{};  // (C); T; beta: none in an RMS norm
  TensorView y{};              // (rows, C); T
  TensorView mean{}, rstd{};   // (rows); fp32; saved for backward; mean: none in an RMS norm
  float epsilon = 1e-5F;
  /// Added to gamma in an RMS norm: 1 where weights are differences from 1, as Gemma's are.
  float gamma_offset = 0.0F;
};

/// dx = gradient through the normalisation [+ d_residual]; dgamma and dbeta are summed over rows.
/// Without mean it is that of the RMS norm, which has no dbeta.
struct LayerNormBackwardArgs {
  TensorView dy{};               // (rows, C); T
  TensorView x{};                // (rows, C); T; what was normalised (the sum, with a residual)
  TensorView mean{}, rstd{};     // (rows); fp32; mean: none in an RMS norm
  TensorView gamma{};            // (C); T
  TensorView d_residual{};       // (rows, C); T; optional: added to dx; may alias dx
  TensorView dx{};               // (rows, C); T; may alias dy
  TensorView dgamma{}, dbeta{};  // (C); fp32, bf16 or fp16; optional (with a mean both or none)
  bool accumulate_parameters = false;  ///< add to dgamma and dbeta instead of overwriting
  float gamma_offset = 0.0F;           ///< as in forward
};

/// y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the tanh form of GELU.
struct GeluForwardArgs {
  TensorView x{};  // any shape; T
  TensorView y{};  // same shape; may alias x
};

/// dx = dy * gelu'(x).
struct GeluBackwardArgs {
  TensorView x{};   // T
  TensorView dy{};  // T
  TensorView dx{};  // T; may alias dy
};

/// y = x / (1 + exp(-x)), which is SiLU, or Swish.
struct SiluForwardArgs {
  TensorView x{};  // any shape; T
  TensorView y{};  // same shape; may alias x
};

/// dx = dy * silu'(x).
struct SiluBackwardArgs {
  TensorView x{};   // T
  TensorView dy{};  // T
  TensorView dx{};  // T; may alias dy
};

/// y = max(x, 0); NaN stays NaN.
struct ReluForwardArgs {
  TensorView x{};  // any shape; T
  TensorView y{};  // same shape; may alias x
};

/// dx = dy where y > 0 (or NaN), else 0. It reads the output, so that the input need not be kept.
struct ReluBackwardArgs {
  TensorView y{};   // T
  TensorView dy{};  // T
  TensorView dx{};  // T; may alias dy
};

/// f of a gated linear unit, y = f(gate) * up (Shazeer 2020): SwiGLU of Llama's MLP, or GeGLU with
/// the tanh form of GELU, of Gemma's.
enum class GateFunction : std::uint8_t { kSilu, kGelu };

/// y = f(gate) * up.
struct SwigluForwardArgs {
  TensorView x{};  // (rows, 2 F); T: F columns of gate, then F of up
  TensorView y{};  // (rows, F); T
  GateFunction function = GateFunction::kSilu;
};

/// d gate = dy * up * f'(gate), d up = dy * f(gate).
struct SwigluBackwardArgs {
  TensorView x{};   // (rows, 2 F); T
  TensorView dy{};  // (rows, F); T
  TensorView dx{};  // (rows, 2 F); T; may alias x
  GateFunction function = GateFunction::kSilu;
};

/// y = cap * tanh(x / cap), which keeps y within (-cap, cap).
struct SoftCapArgs {
  TensorView x{};  // any shape; T
  TensorView y{};  // same shape; may alias x
  float cap = 0.0F;
};

/// y = x * scale, each column by its own number: (IA)^3 (Liu et al. 2022).
struct ScaleColumnsForwardArgs {
  TensorView x{};      // (rows, C); T; rows may be strided
  TensorView scale{};  // C elements; T
  TensorView y{};      // (rows, C); T; rows may be strided; may alias x
  TensorView kept{};   // (rows, C); T; optional: receives x
};

/// dx = dy * scale, d_scale = column sums of dy * x, which are added in the same order on all
/// devices: the same bits.
struct ScaleColumnsBackwardArgs {
  TensorView dy{};          // (rows, C); T; rows may be strided
  TensorView x{};           // (rows, C); T; rows may be strided; read for d_scale
  TensorView scale{};       // C elements; T
  TensorView dx{};          // (rows, C); T; rows may be strided; may alias dy
  TensorView d_scale{};     // C elements; fp32, bf16 or fp16; optional
  bool accumulate = false;  ///< add to d_scale instead of overwriting it
};

// [Note: documents] A sequence may hold several documents, each with positions from 0 and attention
// within itself. `starts` has for each place where in the sequence its document begins: there, or
// where that of the place before does. Without it a sequence is one document. Kernels for the CPU
// throw where it begins anywhere else; on CUDA attention makes the place's output NaN.

/// What attention takes from what the projections of query, key and value give, in rows of
/// `packed`: H heads of queries, K of keys, K of values, where K divides H. Queries and keys [are
/// normalised, each head by itself, as by layer_norm without a mean, and] are turned: of a head's
/// first R channels, i and i + R/2 by the angle position * frequencies[i], rounded to fp32, and
/// times `amplitude`. The others are kept. Each head of keys and values then serves H/K queries in
/// a row and is written so many times.
/// Sources: RoFormer (Su et al. 2021) with the layout of transformers' rotate_half; grouped queries
/// (Ainslie et al. 2023).
struct HeadsForwardArgs {
  TensorView packed{};                   // (B, L, H + 2 K, D); T; D at most kMaxHeadWidth
  TensorView qkv{};                      // (B, L, 3, H, D); T
  TensorView q_gamma{}, k_gamma{};       // (D); T; optional (both or none)
  std::span<const float> frequencies{};  // R/2, in host memory, read before the call returns
  float amplitude = 1.0F;
  float epsilon = 1e-6F;            ///< of the norms
  TensorView starts{};              // (B, L); int32; optional: see [Note: documents]
  std::int64_t first_position = 0;  ///< of the first place of each sequence
  float gamma_offset = 0.0F;        ///< added to the gammas, as in LayerNormForwardArgs
};
/// Gradients of heads that serve several queries are added in order of the queries. Those of gamma
/// are summed over rows and heads.
struct HeadsBackwardArgs {
  TensorView d_qkv{};                    // (B, L, 3, H, D); T
  TensorView packed{};                   // (B, L, H + 2 K, D); T; read if there are gammas
  TensorView d_packed{};                 // (B, L, H + 2 K, D); T; may alias packed
  TensorView q_gamma{}, k_gamma{};       // (D); T; optional (both or none)
  TensorView dq_gamma{}, dk_gamma{};     // (D); fp32, bf16 or fp16; optional (both or none)
  std::span<const float> frequencies{};  // as in forward
  float amplitude = 1.0F;
  float epsilon = 1e-6F;
  bool accumulate_parameters = false;  ///< add to dq_gamma and dk_gamma instead of overwriting
  TensorView starts{};                 // as in forward
  float gamma_offset = 0.0F;           ///< as in forward
};
inline constexpr std::int64_t kMaxHeadWidth = 512;

/// What the softmax of attention is taken of: z = scale q k^T, or with a soft cap, as Gemma 2 has
/// it, cap * tanh(z / cap).
struct AttentionScores {
  float scale = 0.0F;     ///< 0: 1 / sqrt(D)
  float soft_cap = 0.0F;  ///< 0: none

  float scale_of(std::int64_t head_dim) const {
    return scale != 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(head_dim));
  }
  bool operator==(const AttentionScores&) const = default;
};

/// Multi-head attention, softmax(scores) v. If it is causal, keys after the query are
/// masked, and with a window those `window` and more positions before it (Beltagy et al. 2020);
/// else a query sees all keys, and there is neither window nor starts.
struct AttentionForwardArgs {
  TensorView qkv{};         // (B, L, 3, H, D); T
  TensorView out{};         // (B, L, H, D); T
  TensorView lse{};         // (B, H, L); fp32: log of the softmax denominator
  TensorView workspace{};   // uint8; [cuda_]attention_workspace_bytes(...)
  std::int64_t window = 0;  ///< 0: none
  TensorView starts{};      // (B, L); int32; optional: see [Note: documents]
  bool causal = true;
  AttentionScores scores{};
};
struct AttentionBackwardArgs {
  TensorView d_out{};       // (B, L, H, D); T
  TensorView qkv{};         // (B, L, 3, H, D); T
  TensorView out{};         // (B, L, H, D); T
  TensorView lse{};         // (B, H, L); fp32
  TensorView d_qkv{};       // (B, L, 3, H, D); T
  TensorView workspace{};   // uint8; [cuda_]attention_workspace_bytes(...)
  std::int64_t window = 0;  ///< 0: none
  TensorView starts{};      // (B, L); int32; optional: see [Note: documents]
  bool causal = true;
  AttentionScores scores{};
};

/// y = a b, element by element; all of one shape.
struct MultiplyArgs {
  TensorView a{}, b{};  // T
  TensorView y{};       // T; may alias a or b
};

/// Softmax of each row: y = exp(x - m) / sum of exp(x - m), m the row's largest.
struct SoftmaxForwardArgs {
  TensorView x{};  // (rows, C); T
  TensorView y{};  // (rows, C); T; may alias x
};
/// dx = y (dy - sum of dy y over the row).
struct SoftmaxBackwardArgs {
  TensorView y{};   // (rows, C); T; what forward has written
  TensorView dy{};  // (rows, C); T
  TensorView dx{};  // (rows, C); T; may alias dy
};

/// y[b] = the mean over l of x[b, l], added in order of l in fp32.
struct MeanRowsForwardArgs {
  TensorView x{};  // (B, L, C); T
  TensorView y{};  // (B, C); T
};
/// dx[b, l] = dy[b] / L.
struct MeanRowsBackwardArgs {
  TensorView dy{};  // (B, C); T
  TensorView dx{};  // (B, L, C); T
};

/// Attention of the last N positions of a sequence of S, whose keys and values are kept: those of
/// the N are stored behind the ones that are there, then their queries attend to all that they see.
/// Each query's sums run over keys in an order that its position and the window decide, so its bits
/// do not depend on N. Without `out` keys and values are stored and nothing else.
struct CachedAttentionArgs {
  TensorView qkv{};             // (N, 3, H, D); T; contiguous; D at most kMaxHeadWidth
  TensorView keys{}, values{};  // (K, S, D); T; rows contiguous, heads may be strided; K divides H
  TensorView out{};             // (N, H, D); T; contiguous; optional
  std::int64_t window = 0;      ///< as in AttentionForwardArgs
  AttentionScores scores{};
};

/// x (B, L, C) = scale * wte[token] [+ wpe[position]].
struct EmbeddingForwardArgs {
  TensorView tokens{};  // (B, L); int32, each in [0, V)
  TensorView wte{};     // (V, C); T
  TensorView wpe{};     // (>= L, C); T; optional
  TensorView x{};       // (B, L, C); T
  TensorView starts{};  // (B, L); int32; optional: see [Note: documents]
  float scale = 1.0F;
};
/// dwte[token] [+]= scale * dx, dwpe[position] [+]= dx. Rows are added in order of (b, l).
struct EmbeddingBackwardArgs {
  TensorView tokens{};          // (B, L); int32
  TensorView dx{};              // (B, L, C); T
  TensorView dwte{};            // (V, C); fp32, bf16 or fp16; optional
  TensorView dwpe{};            // (>= L, C); fp32, bf16 or fp16; optional
  bool accumulate_wte = false;  ///< add to dwte; otherwise it is zeroed first
  bool accumulate_wpe = false;
  TensorView starts{};  // as in forward
  float scale = 1.0F;
};

/// Identifies one stream of random numbers; see philox.h. Element i of a tensor always draws the
/// same number, whoever owns it.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  ///< e.g. a hash of the tensor's name, or of (step, layer)
};

/// A RandomKey in memory: its two words. Kernels of a step read theirs there, so that a captured
/// step can be replayed with other keys.
inline constexpr int kRandomKeyWords = 2;

/// y = x * mask / (1 - probability), mask drawn by key and element index. Forward and backward are
/// the same function: backward passes dy for x.
struct DropoutArgs {
  TensorView x{};            // T
  TensorView y{};            // T; may alias x
  float probability = 0.0F;  ///< in [0, 1)
  TensorView key{};          // (kRandomKeyWords); int64
  std::uint64_t call = 0;    ///< the mask is that of key_of_call(key, call): philox.h
  /// (1) int64: the number of x's first sample; optional, 0 without.
  TensorView first_sample{};
  std::int64_t sample_numel = 0;  ///< elements of a sample; needed with first_sample
  /// Index of element 0 from the beginning of the first sample.
  std::int64_t first_index = 0;
};

/// Softmax cross-entropy of each row, and its gradient in place of the logits.
struct CrossEntropyArgs {
  TensorView logits{};          // (rows, stride >= V); T; out: d loss / d logits if gradient
  TensorView targets{};         // (rows); int32; ignore_index rows have no loss and no gradient
  TensorView losses{};          // (rows); fp32; out: -log p[target], 0 for ignored rows
  std::int64_t vocab_size = 0;  ///< V; logits columns beyond V (padding) count as -inf, gradient 0
  std::int32_t ignore_index = -1;
  bool gradient = true;
  TensorView scale{};  // (1); fp32; optional: multiplies the gradient
  /// Not 0: the softmax is that of soft_cap * tanh(logits / soft_cap).
  float soft_cap = 0.0F;
  /// (kHitWords) int64; optional, without gradient: the rows that are not ignored are added to the
  /// second word, and to the first those of them whose largest logit is the target's. Of equal
  /// logits the first counts, as in torch.argmax.
  TensorView hits{};
};
inline constexpr int kHitWords = 2;

/// Mean squared error of each row, and its gradient in place of the predictions.
struct SquaredErrorArgs {
  TensorView x{};        // (rows, C); T; predictions; out: d loss / d x if gradient
  TensorView targets{};  // (rows, C); fp32
  TensorView losses{};   // (rows); fp32; out: the mean over C of (x - target)^2
  bool gradient = true;
  TensorView scale{};  // (1); fp32; optional: multiplies the gradient
};

/// What a step does to some parameters differently than to others.
struct SegmentRates {
  float weight_decay = 0.0F;
  float learning_rate_scale = 1.0F;  ///< times the learning rate of OptimizerStepArgs::scalars
  bool operator==(const SegmentRates&) const = default;
};

/// A range of a flat shard with its rates; disjoint ones. It begins with a block of states.
struct OptimizerSegment {
  std::int64_t begin = 0, end = 0;  ///< elements, relative to the views
  SegmentRates rates{};
};

/// Scalars that an optimizer step reads from device memory, the learning rate among them, so that a
/// captured step can be replayed with other values: Optimizer::scalars makes them.
inline constexpr int kOptimizerScalars = 8;
using OptimizerScalars = std::array<float, kOptimizerScalars>;

struct Optimizer;  // optimizer.h

/// One step of an optimizer on a flat shard. Elements outside of every segment are left alone.
struct OptimizerStepArgs {
  const Optimizer* optimizer = nullptr;  ///< a row of optimizers()
  TensorView master{};                   // (n); fp32; updated
  TensorView gradient{};                 // (n); fp32, bf16 or fp16
  std::span<const TensorView>
      states{};            // each (n / its block, rounded up); updated: those of optimizer_states
  TensorView parameter{};  // (n); bf16 or fp16; optional: receives the rounded master
  std::span<const OptimizerSegment> segments{};
  TensorView scalars{};         // (kOptimizerScalars); fp32
  TensorView gradient_scale{};  // (1); fp32; the clip factor: multiplies the gradient
  TensorView skip{};            // (1); int64; optional: not 0: everything is left as it is

  /// Round `parameter` up or down at random (bf16_rounded_at_random in philox.h) instead of to the
  /// nearest: so small updates move it too, on average. Element i draws word first_index + i of
  /// rounding_key, whose stream should be another one in every step.
  bool stochastic_rounding = false;
  TensorView rounding_key{};     // (kRandomKeyWords); int64; with stochastic_rounding
  std::int64_t first_index = 0;  ///< global index of element 0
};

/// Adds squares of x to an exact sum (exact_sum.h). The squares of each block of kNormBlock
/// elements are first added in fp64, in an order that depends on nothing else.
inline constexpr std::int64_t kNormBlock = 64;
struct ExactSquaresArgs {
  TensorView x{};      // (n), n a multiple of kNormBlock; fp32, bf16 or fp16
  TensorView words{};  // (kExactSumWords); int64; updated
};

/// Adds x to an exact sum.
struct ExactSumArgs {
  TensorView x{};      // (n); fp32
  TensorView words{};  // (kExactSumWords); int64; updated
};

/// scale = 1 / count, 0 if that is 0: the only averaging of the loss. With a scaler, times its
/// scale; its kFirstBadWord becomes kNoElement.
struct LossScaleArgs {
  TensorView count{};   // (1); int64
  TensorView scale{};   // (1); fp32
  TensorView scaler{};  // (kLossScalerWords); int64; optional; updated
};

/// Rounds the sums of a step, over all ranks, and makes the clip factor of them. With a scaler, the
/// gradient is its scale too large: the norm is divided by it, and so is the clip factor that was
/// made of that norm.
struct StepResultsArgs {
  TensorView losses{};       // (kExactSumWords); int64: the sum of the losses
  TensorView squares{};      // (kExactSumWords); int64: the squared gradient norm
  double clip_norm = 0.0;    ///< 0: no clipping
  TensorView results{};      // (2); fp64: the sum of the losses, the gradient norm
  TensorView clip_factor{};  // (1); fp32: min(1, clip_norm / (norm + 1e-6)); NaN stays NaN
  TensorView scaler{};       // (kLossScalerWords); int64; optional
};

/// Lowers kFirstBadWord of a scaler to the place of the first element of x that is not finite:
/// first_index + i. Reads x only if `squares` has seen such an element.
struct FindNonFiniteArgs {
  TensorView x{};                // (n); fp32, bf16 or fp16
  TensorView squares{};          // (kExactSumWords); int64: what x was added to
  std::int64_t first_index = 0;  ///< global index of element 0
  TensorView scaler{};           // (kLossScalerWords); int64; updated
};

/// Judges a step, once its gradient norm is known: it is skipped if an element of the gradient is
/// not finite. Updates the scaler by its rule (loss_scaler.h), and chooses the optimizer's scalars
/// by the number of steps that were skipped before: row i of `candidates` if `base` + i were.
struct UpdateLossScalerArgs {
  LossScalerRule rule{};
  TensorView squares{};     // (kExactSumWords); int64: the squared gradient norm, of all ranks
  TensorView scaler{};      // (kLossScalerWords); int64; updated
  TensorView candidates{};  // (rows, kOptimizerScalars); fp32
  TensorView base{};        // (1); int64
  TensorView scalars{};     // (kOptimizerScalars); fp32; out
};

/// dst = [dst +] src_0 + src_1 + ..., added in that order in fp32, rounded once to dst's dtype.
struct OrderedSumArgs {
  std::span<const TensorView> sources{};  // each (n); fp32, bf16 or fp16
  TensorView dst{};                       // (n); fp32, bf16 or fp16
  bool accumulate = false;                ///< dst is the first summand
};

/// dst = src, converted; any pair of fp32, bf16 and fp16.
struct CastArgs {
  TensorView src{};
  TensorView dst{};  // may be src
  float scale = 1.0F;
};

/// dst += src, in fp32, rounded to dst's dtype.
struct AddArgs {
  TensorView src{};  // fp32, bf16 or fp16
  TensorView dst{};  // fp32, bf16 or fp16
};

/// dst = value * factor.
struct FillArgs {
  TensorView dst{};  // fp32, bf16 or fp16
  float value = 0.0F;
  TensorView factor{};  // (1); fp32; optional: 1
};

/// dst[i] = mean + stddev * normal(key, first_index + i).
struct FillNormalArgs {
  TensorView dst{};  // fp32
  float mean = 0.0F, stddev = 1.0F;
  RandomKey key{};
  std::int64_t first_index = 0;
};

/// One device's kernels. A plain table: adding a kernel is an Args struct above, a member here, and
/// an entry in each device's table.
struct KernelTable {
  void (*gemm)(const GemmArgs&, Stream&);
  void (*bias_gradient)(const BiasGradientArgs&, Stream&);
  void (*layer_norm_forward)(const LayerNormForwardArgs&, Stream&);
  void (*layer_norm_backward)(const LayerNormBackwardArgs&, Stream&);
  void (*gelu_forward)(const GeluForwardArgs&, Stream&);
  void (*gelu_backward)(const GeluBackwardArgs&, Stream&);
  void (*silu_forward)(const SiluForwardArgs&, Stream&);
  void (*silu_backward)(const SiluBackwardArgs&, Stream&);
  void (*relu_forward)(const ReluForwardArgs&, Stream&);
  void (*relu_backward)(const ReluBackwardArgs&, Stream&);
  void (*swiglu_forward)(const SwigluForwardArgs&, Stream&);
  void (*swiglu_backward)(const SwigluBackwardArgs&, Stream&);
  void (*soft_cap)(const SoftCapArgs&, Stream&);
  void (*scale_columns_forward)(const ScaleColumnsForwardArgs&, Stream&);
  void (*scale_columns_backward)(const ScaleColumnsBackwardArgs&, Stream&);
  void (*heads_forward)(const HeadsForwardArgs&, Stream&);
  void (*heads_backward)(const HeadsBackwardArgs&, Stream&);
  void (*multiply)(const MultiplyArgs&, Stream&);
  void (*softmax_forward)(const SoftmaxForwardArgs&, Stream&);
  void (*softmax_backward)(const SoftmaxBackwardArgs&, Stream&);
  void (*mean_rows_forward)(const MeanRowsForwardArgs&, Stream&);
  void (*mean_rows_backward)(const MeanRowsBackwardArgs&, Stream&);
  void (*attention_forward)(const AttentionForwardArgs&, Stream&);
  void (*attention_backward)(const AttentionBackwardArgs&, Stream&);
  void (*cached_attention)(const CachedAttentionArgs&, Stream&);
  void (*embedding_forward)(const EmbeddingForwardArgs&, Stream&);
  void (*embedding_backward)(const EmbeddingBackwardArgs&, Stream&);
  void (*dropout)(const DropoutArgs&, Stream&);
  void (*cross_entropy)(const CrossEntropyArgs&, Stream&);
  void (*squared_error)(const SquaredErrorArgs&, Stream&);
  void (*optimizer_step)(const OptimizerStepArgs&, Stream&);
  void (*exact_squares)(const ExactSquaresArgs&, Stream&);
  void (*exact_sum)(const ExactSumArgs&, Stream&);
  void (*loss_scale)(const LossScaleArgs&, Stream&);
  void (*step_results)(const StepResultsArgs&, Stream&);
  void (*find_non_finite)(const FindNonFiniteArgs&, Stream&);
  void (*update_loss_scaler)(const UpdateLossScalerArgs&, Stream&);
  void (*ordered_sum)(const OrderedSumArgs&, Stream&);
  void (*cast)(const CastArgs&, Stream&);
  void (*add)(const AddArgs&, Stream&);
  void (*fill)(const FillArgs&, Stream&);
  void (*dequantize)(const DequantizeArgs&, Stream&);
  void (*fill_normal)(const FillNormalArgs&, Stream&);

  // Library work done once for a problem, so that no step has to: choose an algorithm, compile a
  // kernel. A call with these arguments finds it done; nothing is launched, and of addresses only
  // the alignment counts.
  void (*plan_gemm)(const GemmArgs&, Stream&);
  void (*plan_attention_forward)(const AttentionForwardArgs&, Stream&);
  void (*plan_attention_backward)(const AttentionBackwardArgs&, Stream&);
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
