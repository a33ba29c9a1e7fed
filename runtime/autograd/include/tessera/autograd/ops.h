#pragma once

#include <cstdint>

#include "tessera/autograd/tape.h"

namespace tessera::ops {

// Differentiable operations: thin layers over the kernels. Shapes as in kernel_table.h; parameters
// are taken by reference and must outlive the tape. Gradients of parameters are written to
// Parameter::gradient (fp32 or bf16), added if it was already written in this micro-step.

/// y (..., O) = x (..., I) weight^T + bias.  weight (O, I); bias (O), may be null.
Value linear(Tape& tape, const Value& x, Parameter& weight, Parameter* bias);

/// Normalisation of the last dimension C; gamma, beta (C).
Value layer_norm(Tape& tape, const Value& x, Parameter& gamma, Parameter& beta);

struct SumAndNorm {
  Value sum;   ///< x + residual
  Value norm;  ///< layer_norm(sum)
};
/// Residual addition and layer norm in one pass over memory. `x` is consumed: its memory becomes
/// the sum when nothing else holds it.
SumAndNorm add_layer_norm(Tape& tape, Value x, const Value& residual, Parameter& gamma,
                          Parameter& beta);

/// GELU, tanh form. Dropped and remade under selective recomputation.
Value gelu(Tape& tape, const Value& x);

/// Causal multi-head self-attention; qkv (B, L, 3 C) -> (B, L, C). Dropped and remade under
/// selective recomputation.
Value attention(Tape& tape, const Value& qkv, std::int64_t heads);

/// a + b. `a` is consumed: its memory becomes the sum when nothing else holds it.
Value add(Tape& tape, Value a, const Value& b);

/// Zeroes elements with the given probability and scales the others by 1 / (1 - probability).
/// The identity when probability is 0 or nothing is recorded.
Value dropout(Tape& tape, Value x, float probability);

/// x (B, L, C) = wte[token] + wpe[position]; tokens (B, L) int32.
Value embedding(Tape& tape, const TensorView& tokens, Parameter& wte, Parameter& wpe);

/// Loss per row, (rows) fp32, of softmax(logits (rows, V)) against targets (rows) int32.
Value cross_entropy(Tape& tape, const Value& logits, const TensorView& targets,
                    std::int32_t ignore_index = -1);

/// cross_entropy(x weight^T) without the logits of the whole batch: rows are taken in chunks, and
/// while recording each chunk's gradients are computed at once, with TapeOptions::loss_scale. So
/// this must be the last operation of the last layer, whose output gradient is loss_scale
/// everywhere.  x (rows, C), weight (V, C), targets (rows) int32 -> losses (rows) fp32.
Value linear_cross_entropy(Tape& tape, const Value& x, Parameter& weight,
                           const TensorView& targets, std::int32_t ignore_index = -1);

/// Rows of one chunk of linear_cross_entropy.
std::int64_t cross_entropy_chunk_rows(std::int64_t rows, std::int64_t vocab_size);

}  // namespace tessera::ops
