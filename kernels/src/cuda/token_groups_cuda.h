#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/cuda_launch.h"

namespace tessera::cuda {

/// Where each token of a vocabulary occurs: token v at rows[begin[v]], ..., rows[end[v] - 1] in
/// ascending order (begin = end: nowhere). In device memory.
struct TokenGroups {
  const std::int32_t* begin;  // (V)
  const std::int32_t* end;    // (V)
  const std::int32_t* rows;   // (n)
};

/// Scratch for the groups of n tokens, n < 2^31, in bytes.
std::size_t token_groups_bytes(std::int64_t n, std::int64_t vocab_size);

/// Groups `tokens` (n) by a stable radix sort, in `scratch` (256-byte aligned). Tokens outside of
/// [0, vocab_size) are in no group.
TokenGroups group_by_token(const std::int32_t* tokens, std::int64_t n, std::int64_t vocab_size,
                           void* scratch, cudaStream_t queue);

}  // namespace tessera::cuda
