#pragma once

#include <cstdint>
#include <span>

#include "tessera/autograd/tape.h"

namespace tessera::ops {

// Differentiable operations: thin layers over the kernels. Shapes as in kernel_table.h; parameters
// are taken by reference and must outlive the tape. Gradients of parameters are written to
// Parameter::gradient (fp32, bf16 or fp16), added if it was already written in this micro-step, and
// skipped where it is empty when backward runs. Values taken by value (not by reference) are
// consumed: move them in, and their memory is reused if nothing else holds it. All throw
// Error{kInvalidArgument} if shapes or dtypes do not fit.

/// A product of two small matrices beside a linear layer's own (LoRA: Hu et al. 2021).
struct LowRank {
  Parameter& a;  ///< (R, I)
  Parameter& b;  ///< (O, R)
  float scale = 1.0F;
  std::int64_t first_column = 0;  ///< of y: where its O columns begin
};

/// y (..., O) = x (..., I) weight^T + bias + residual.  weight (O, I); bias (O) and residual
/// (..., O) may be null. The residual is added where the GEMM stores its result, instead of in a
/// pass of its own. `beside` is added to y as by add_low_rank(); backward then adds to the gradient
/// of x in place.
Value linear(Tape& tape, const Value& x, Parameter& weight, Parameter* bias,
             const Value* residual = nullptr, std::span<const LowRank> beside = {});

/// y (..., Y) with scale * (x a^T) b^T added to columns [first_column, first_column + O), for each
/// of `products`; x (..., I). `y` becomes the sum; it must be held by nothing else. Where b is
/// zero, y keeps its bits (but for -0, which becomes 0). Products one behind the other share GEMMs
/// where their scales are equal and their a's neighbours in memory, as they are where a layer
/// declares them one behind the other and each has a multiple of 64 elements (of the optimizer's
/// blocks, if it has any).
Value add_low_rank(Tape& tape, Value y, const Value& x, std::span<const LowRank> products);

/// scale * (x a^T), (..., R): the first of these products alone; x (..., I), a (R, I).
Value low_rank_hidden(Tape& tape, const Value& x, Parameter& a, float scale);

/// x (..., Y) whose columns [first_column, first_column + C) are multiplied, each by its own number
/// of `scale` (C elements), as (IA)^3 does (Liu et al. 2022). If these are not all columns, `x`
/// becomes the product, and must be held by nothing else. A scale of ones changes no bit.
Value scale_columns(Tape& tape, Value x, Parameter& scale, std::int64_t first_column = 0);

/// y (..., Y) whose columns [first_column, first_column + O) are divided, each by the norm of a row
/// of weight (O, I) + scale * b a, as DoRA does (Liu et al. 2024, section 4.3). The norms count as
/// constants: no gradient flows to what they are of. `y` becomes the quotient; it must be held by
/// nothing else.
Value divide_by_row_norms(Tape& tape, Value y, const TensorView& weight, const LowRank& low_rank);

/// y (..., Y) + bias (Y), which is frozen. `y` becomes the sum; it must be held by nothing else.
Value add_bias(Tape& tape, Value y, const Parameter& bias);

struct MlpParameters {
  Parameter& weight;                     ///< (H, I)
  Parameter* bias = nullptr;             ///< (H)
  Parameter& projection_weight;          ///< (O, H)
  Parameter* projection_bias = nullptr;  ///< (O)
};
/// y (..., O) = linear(gelu(linear(x)), residual), with GELU and its derivative in the epilogues of
/// the GEMMs. As with gelu, the hidden activation is dropped and recomputed under selective
/// recomputation. `x` is let go of as soon as it has been read.
Value mlp(Tape& tape, Value x, MlpParameters parameters, const Value* residual = nullptr);

/// Normalisation of the last dimension C; gamma, beta (C).
Value layer_norm(Tape& tape, const Value& x, Parameter& gamma, Parameter& beta,
                 float epsilon = 1e-5F);

/// x / sqrt(mean(x^2) + epsilon) * (gamma + gamma_offset) over the last dimension C; gamma (C).
Value rms_norm(Tape& tape, const Value& x, Parameter& gamma, float epsilon,
               float gamma_offset = 0.0F);

struct SumAndNorm {
  Value sum;   ///< x + residual
  Value norm;  ///< of the sum
};
/// Residual addition and layer norm in one pass over memory. `x` becomes the sum.
SumAndNorm add_layer_norm(Tape& tape, Value x, const Value& residual, Parameter& gamma,
                          Parameter& beta, float epsilon = 1e-5F);
/// add_layer_norm() with an RMS norm.
SumAndNorm add_rms_norm(Tape& tape, Value x, const Value& residual, Parameter& gamma, float epsilon,
                        float gamma_offset = 0.0F);

/// GELU. Dropped and recomputed under selective recomputation. In place of `x` when nothing is
/// recorded.
Value gelu(Tape& tape, Value x, GeluForm form = GeluForm::kTanh);

/// x / (1 + exp(-x)), also called Swish. As gelu otherwise.
Value silu(Tape& tape, Value x);

/// max(x, 0). In place of `x` where nothing else holds it; backward reads the output.
Value relu(Tape& tape, Value x);
/// tanh(x). As relu otherwise.
Value tanh(Tape& tape, Value x);

/// silu(gate) * up of x (..., 2 F) = gate | up -> (..., F). Dropped and recomputed under selective
/// recomputation.
Value swiglu(Tape& tape, Value x);
/// swiglu() with GELU's tanh form instead of SiLU.
Value geglu(Tape& tape, Value x);

/// How `heads` makes attention's input; see HeadsForwardArgs.
struct HeadsOptions {
  std::int64_t heads = 0, kv_heads = 0, width = 0;
  std::span<const float> frequencies{};  ///< must outlive the tape
  float amplitude = 1.0F;
  Parameter* q_gamma = nullptr;  ///< (width); both or none; must outlive the tape
  Parameter* k_gamma = nullptr;
  float epsilon = 1e-6F;
  float gamma_offset = 0.0F;        ///< added to the gammas
  TensorView starts{};              ///< (B, L) int32; must outlive the tape; none: see `attention`
  std::int64_t first_position = 0;  ///< of the first place of each sequence; without recording
};
/// packed (B, L, (heads + 2 kv_heads) * width), queries, keys and values of a projection -> (B, L,
/// 3 heads * width): queries and keys normalised and turned by their positions, keys and values
/// repeated for the queries that share them. Dropped and recomputed under selective recomputation.
Value heads(Tape& tape, const Value& packed, const HeadsOptions& options);

/// Multi-head self-attention; qkv (B, L, 3 C) -> (B, L, C). If it is causal, a position attends to
/// itself and those before it, with a window to the last `window` of these; else (an encoder's) to
/// all of the sequence, and there is no window. With `starts` (B, L) int32, which
/// must outlive the tape, a sequence holds several documents that do not see each other: of each
/// place where its document begins. Dropped and recomputed under selective recomputation. Throws
/// Error{kUnavailable} if a GPU is given documents.
Value attention(Tape& tape, const Value& qkv, std::int64_t heads, std::int64_t window = 0,
                const TensorView& starts = {}, bool causal = true,
                const AttentionScores& scores = {});

/// Keys and values of a sequence, of which `positions` are there.
struct KeyValueCache {
  TensorView keys{}, values{};  ///< (K, at least positions + N, D); see CachedAttentionArgs
  std::int64_t positions = 0;
};
/// Attention of the N next positions of one sequence, qkv (1, N, 3 C) -> (1, N, C), whose keys and
/// values are stored behind those that are there. Without recording.
Value cached_attention(Tape& tape, const Value& qkv, std::int64_t heads, std::int64_t window,
                       const KeyValueCache& cache, const AttentionScores& scores = {});

/// a + b. `a` becomes the sum.
Value add(Tape& tape, Value a, const Value& b);

/// a b, element by element; both of one shape. They may be the same value.
Value multiply(Tape& tape, const Value& a, const Value& b);

/// Softmax over the last dimension. In place of `x` where nothing else holds it; backward reads the
/// output.
Value softmax(Tape& tape, Value x);

/// The matrix products of activations: c (..., M, N) = a (..., M, K) b (..., K, N), or with
/// `transpose_b` of b (..., N, K) transposed; the leading dimensions of both are equal, and each of
/// their matrices is a GEMM of its own.
Value matmul(Tape& tape, const Value& a, const Value& b, bool transpose_b = false);

/// x (B, L, C) -> (B, C): the mean over the sequence.
Value mean_rows(Tape& tape, const Value& x);

/// Zeroes elements with the given probability and scales the others by 1 / (1 - probability).
/// The identity when probability is 0 or the tape is not for training.
Value dropout(Tape& tape, Value x, float probability);

/// x (B, L, C) = scale * wte[token] + wpe[position]; tokens (B, L) int32, read again in backward.
/// Without `wpe`, x = scale * wte[token]. Positions are those within documents if there are
/// `starts`. The scale is first rounded to the dtype of `wte`, as it would be in a tensor.
/// Positions begin at `first_position`; unless it is 0, `wpe` is frozen.
Value embedding(Tape& tape, const TensorView& tokens, Parameter& wte, Parameter* wpe,
                const TensorView& starts = {}, float scale = 1.0F, std::int64_t first_position = 0);

/// y (..., C) + row `row` of table (R, C), in every place. `y` becomes the sum; it must be held by
/// nothing else.
Value add_row(Tape& tape, Value y, Parameter& table, std::int64_t row);

/// x (B, P + L, C): the P rows of `prompt` (P, C), then scale * wte[token] of tokens (B, L) int32,
/// of each sequence; with `wpe` positions are added, those of the prompt first. Of the three the
/// prompt alone has a gradient (prompt tuning: Lester et al. 2021).
Value prompted_embedding(Tape& tape, const TensorView& tokens, const Parameter& wte,
                         const Parameter* wpe, Parameter& prompt, float scale = 1.0F);
/// prompted_embedding() with a prompt that other operations have made (P-tuning: Liu et al. 2021).
Value prompted_embedding(Tape& tape, const TensorView& tokens, const Parameter& wte,
                         const Parameter* wpe, const Value& prompt, float scale = 1.0F);

/// A copy of a parameter, through which its gradient flows.
Value value_of(Tape& tape, Parameter& parameter);

/// (B, P + T - R, C): rows (1, P, C) in place of the first R = `replaced` rows of each sequence of
/// x (B, T, C).
Value rows_in_front(Tape& tape, const Value& rows, const Value& x, std::int64_t replaced = 0);
/// x (B, T, C) behind `count` rows of zeros in each sequence: (B, count + T, C).
Value zeros_in_front(Tape& tape, const Value& x, std::int64_t count);
/// x (P, C) with `columns` zeros before each row: (1, P, columns + C).
Value zeros_beside(Tape& tape, const Value& x, std::int64_t columns);

/// x (B, T, C) without the first `count` rows of each sequence: (B, T - count, C).
Value without_first(Tape& tape, const Value& x, std::int64_t count);

// [Note: losses end the tape]
// The losses' gradients are computed in forward, while the logits are at hand, with
// TapeOptions::loss_scale: a loss must be the last operation of the last layer, and the gradient
// that backward is given for it must be loss_scale everywhere. Its values are not read again.
//
// With TapeOptions::predicts there are no targets, and a loss returns what it would have compared
// with them: logits, or x. So the last layer's output is what it predicts.

/// Loss per row, (rows) fp32, of softmax(logits (..., V)) against targets (rows elements) int32.
/// `logits` become their own gradient. A row whose target is `ignore_index` has loss 0 and no
/// gradient; in training, -100 in a batch's targets means -1 (see BatchSource::fill). Any other
/// target outside of [0, V) is an Error on the CPU, and a loss of nan on a GPU.
Value cross_entropy(Tape& tape, Value logits, const TensorView& targets,
                    std::int32_t ignore_index = -1);

/// A product that logits have besides: hidden (..., R) b^T, b (V, R).
struct LowRankLogits {
  Value hidden;
  Parameter& b;
};

/// cross_entropy(x weight^T) without the logits of the whole batch: rows are taken in chunks, and
/// while recording each chunk's gradients are computed at once; so weight.gradient, unlike those of
/// other operations, is written in forward. x (..., C) becomes its own gradient; weight (V, C);
/// targets (rows elements) int32 -> losses (rows) fp32. With a soft cap the logits are soft_cap *
/// tanh(x weight^T / soft_cap). With a bias (V) they are x weight^T + bias; there is no cap then.
/// With `low_rank` its product is added to x weight^T.
Value linear_cross_entropy(Tape& tape, Value x, Parameter& weight, const TensorView& targets,
                           std::int32_t ignore_index = -1, float soft_cap = 0.0F,
                           Parameter* bias = nullptr, const LowRankLogits* low_rank = nullptr);

/// Loss per row, (rows) fp32: the mean of (x - target)^2 over the last dimension of x (..., C);
/// targets (as many elements) fp32. Its mean over rows is PyTorch's mse_loss. `x` becomes its own
/// gradient.
Value squared_error(Tape& tape, Value x, const TensorView& targets);

/// Rows of one chunk of linear_cross_entropy: a multiple of 64, at least 64. The logits of a chunk
/// stay within what suits the kernels of `device` (on a CPU 64 MiB of fp32, on a GPU 512 MiB of
/// bf16), chunks are as few as that allows, and equal but for the last, which may be smaller by
/// less than 64 rows for each chunk.
std::int64_t cross_entropy_chunk_rows(std::int64_t rows, std::int64_t vocab_size,
                                      DeviceKind device);

}  // namespace tessera::ops
