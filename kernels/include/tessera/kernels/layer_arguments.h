#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "tessera/core/tensor.h"
#include "tessera/kernels/fp8.h"

namespace tessera {

// Arguments of the kernels that layers call; see kernel_table.h for what holds for all.

/// C (M, N) = op(A) op(B) [+ bias] [+ C or residual].  op(A) is (M, K), op(B) is (K, N).
///
/// Work that follows or accompanies a GEMM in a linear layer may be asked for along with it, as
/// AddArgs, GeluForwardArgs and GeluBackwardArgs describe it; devices that can, do it while the
/// data is at hand. The CPU rounds in between to T, as separate kernels would; CUDA may not.
struct GemmArgs {
  TensorView a{};     // (M, K), or (K, M) if transpose_a; T; rows may be strided
  TensorView b{};     // (K, N), or (N, K) if transpose_b; T; rows may be strided
  TensorView c{};     // (M, N); fp32 or T; rows may be strided
  TensorView bias{};  // (N); T; optional
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  ///< add to C instead of overwriting it
  /// (M, N); C's dtype; contiguous, as C is; optional: added, without overlapping C. Alone: without
  /// accumulate, GELU and its derivative.
  TensorView residual{};

  bool gelu = false;  ///< C = gelu(op(A) op(B) + bias); C contiguous, of T; not with accumulate
  TensorView gelu_input{};  // (M, N); T; optional, with gelu: receives op(A) op(B) + bias
  /// (M, N); T; optional: C = (op(A) op(B)) * gelu'(gelu_backward_input); C contiguous, of T;
  /// without bias, accumulate and gelu.
  TensorView gelu_backward_input{};

  // A and B in fp8, both or neither: their codes, uint8, K along the rows of both (transpose_b
  // alone), T is bf16, not both E5M2. The sum of products of codes is multiplied by the reciprocals
  // of both scales, and rounded once behind bias, residual or C. Without GELU and its derivative.
  Fp8Operand a_fp8{}, b_fp8{};
  /// On tensor cores: sums stay in their accumulators, which keep 14 bits, for all of K.
  bool fast_accumulation = false;
};

/// Whether the operands are codes of fp8.
inline bool is_fp8(const GemmArgs& args) { return static_cast<bool>(args.a_fp8.amax); }

/// db (N) [+]= column sums of dy (M, N), each rounded to fp32 before it is added to db.
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
  TensorView amax{};  // (1); int32; optional: receives what AmaxArgs leaves of y
};

/// dx = gradient through the normalisation [+ d_residual]; dgamma and dbeta are summed over rows.
/// Column sums of dx as it is stored are the gradient of a bias, if x was a linear layer's output.
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
  TensorView amax{};                   // (1); int32; optional: receives what AmaxArgs leaves of dx
  TensorView dx_sums{};                // (C); fp32; optional: receives the column sums of dx
};

/// GELU is x Phi(x), Phi the distribution of a normal number. The tanh form, 0.5 x (1 +
/// tanh(sqrt(2/pi) (x + 0.044715 x^3))), is GPT-2's; the exact one, with erf, is BERT's.
enum class GeluForm : std::uint8_t { kTanh, kErf };

/// y = gelu(x).
struct GeluForwardArgs {
  TensorView x{};  // any shape; T
  TensorView y{};  // same shape; may alias x
  GeluForm form = GeluForm::kTanh;
  TensorView amax{};  // (1); int32; optional: receives what AmaxArgs leaves of y
};

/// dx = dy * gelu'(x).
struct GeluBackwardArgs {
  TensorView x{};   // T
  TensorView dy{};  // T
  TensorView dx{};  // T; may alias dy
  GeluForm form = GeluForm::kTanh;
  TensorView amax{};  // (1); int32; optional: receives what AmaxArgs leaves of dx
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

/// Activation functions whose derivative is known from their output, so that the input need not be
/// kept.
enum class OutputActivation : std::uint8_t { kRelu, kTanh };

/// y = max(x, 0), or tanh(x); NaN stays NaN.
struct ReluForwardArgs {
  TensorView x{};  // any shape; T
  TensorView y{};  // same shape; may alias x
  OutputActivation function = OutputActivation::kRelu;
};

/// dx = dy where y > 0 (or NaN), else 0; of tanh dy (1 - y^2).
struct ReluBackwardArgs {
  TensorView y{};   // T
  TensorView dy{};  // T
  TensorView dx{};  // T; may alias dy
  OutputActivation function = OutputActivation::kRelu;
};

/// f of a gated linear unit, y = f(gate) * up (Shazeer 2020): SwiGLU of Llama's MLP, or GeGLU with
/// the tanh form of GELU, of Gemma's.
enum class GateFunction : std::uint8_t { kSilu, kGelu };

/// y = f(gate) * up.
struct SwigluForwardArgs {
  TensorView x{};  // (rows, 2 F); T: F columns of gate, then F of up
  TensorView y{};  // (rows, F); T
  GateFunction function = GateFunction::kSilu;
  TensorView amax{};  // (1); int32; optional: receives what AmaxArgs leaves of y
};

/// d gate = dy * up * f'(gate), d up = dy * f(gate).
struct SwigluBackwardArgs {
  TensorView x{};   // (rows, 2 F); T
  TensorView dy{};  // (rows, F); T
  TensorView dx{};  // (rows, 2 F); T; may alias x
  GateFunction function = GateFunction::kSilu;
  TensorView amax{};  // (1); int32; optional: receives what AmaxArgs leaves of dx
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

/// The operand of attention, made of the projections of query, key and value, which are rows of
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

/// The scores of which attention takes the softmax: z = scale q k^T, or with a soft cap, as Gemma
/// 2 has it, cap * tanh(z / cap).
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
/// else a query sees all keys of its document, and there is no window.
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
  /// logits the first counts, as in torch.argmax. Or (hit_words(V)): behind these the same of each
  /// class, the rows of it whose largest logit is the target's, those whose largest logit is its,
  /// and those whose target it is.
  TensorView hits{};
};
inline constexpr int kHitWords = 2;
inline constexpr int kClassHitWords = 3;
/// CrossEntropyArgs::hits of losses that count each of `classes`; 0: none.
constexpr std::int64_t hit_words(std::int64_t classes) {
  return kHitWords + kClassHitWords * classes;
}

/// Mean squared error of each row, and its gradient in place of the predictions.
struct SquaredErrorArgs {
  TensorView x{};        // (rows, C); T; predictions; out: d loss / d x if gradient
  TensorView targets{};  // (rows, C); fp32
  TensorView losses{};   // (rows); fp32; out: the mean over C of (x - target)^2
  bool gradient = true;
  TensorView scale{};  // (1); fp32; optional: multiplies the gradient
};

}  // namespace tessera
