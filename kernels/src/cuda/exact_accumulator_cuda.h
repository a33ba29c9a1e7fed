#pragma once

#include <cstdint>
#include <cstring>

#include "simt.h"
#include "tessera/kernels/exact_sum.h"

// Exact sums (exact_sum.h) on a GPU: the threads of a block add to words in shared memory with
// integer atomics, whose order does not matter, and the block adds those to the result.
namespace tessera::cuda {

/// The type of CUDA's 64-bit atomics; additions of negative numbers wrap around.
using ExactWord = unsigned long long;  // NOLINT(google-runtime-int)
using ExactWords = ExactWord[kExactSumWords];

/// By all kThreads threads of a block; ends in a barrier.
template <int kThreads>
__device__ void clear_words(ExactWord* words) {
  for (int i = static_cast<int>(threadIdx.x); i < kExactSumWords; i += kThreads) words[i] = 0;
  __syncthreads();
}

__device__ inline void add_term(ExactWord* words, double term) {
  std::uint64_t bits;
  memcpy(&bits, &term, sizeof bits);
  add_exactly(bits, [&](int word, std::int64_t value) {
    if (value != 0) atomicAdd(&words[word], static_cast<ExactWord>(value));
  });
}

/// Adds a block's words to those in global memory; by all threads, begins with a barrier.
template <int kThreads>
__device__ void add_words(const ExactWord* words, std::int64_t* result) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kExactSumWords; i += kThreads) {
    if (words[i] != 0) atomicAdd(reinterpret_cast<ExactWord*>(result) + i, words[i]);
  }
}

/// The sum, rounded to fp64.
__device__ inline double rounded(const std::int64_t* words) {
  const std::uint64_t bits = exact_sum_bits(words);
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace tessera::cuda
