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

__device__ inline std::uint64_t bits_of(double term) {
  std::uint64_t bits;
  memcpy(&bits, &term, sizeof bits);
  return bits;
}

__device__ inline void add_term(ExactWord* words, double term) {
  add_exactly(bits_of(term), [&](int word, std::int64_t value) {
    if (value != 0) atomicAdd(&words[word], static_cast<ExactWord>(value));
  });
}

/// The few words of an exact sum that terms of about the same size change, in registers: a thread
/// adds there without waiting for others. What the window misses is added to the block's words at
/// once. All functions are called by whole warps, which choose one window.
class ExactWindow {
 public:
  /// Terms are not negative; 0: none.
  __device__ void add(ExactWord* words, double term) {
    const std::uint64_t bits = bits_of(term);
    if (first_ == kUnset) choose(bits);
    add_exactly(bits, [&](int word, std::int64_t value) {
      if (word < first_ || word >= first_ + kWords) {
        if (value != 0) atomicAdd(&words[word], static_cast<ExactWord>(value));
        return;
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i) kept_[i] += word == first_ + i ? value : 0;
    });
  }

  /// Adds what is kept to the block's words.
  __device__ void flush(ExactWord* words) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const std::int64_t sum = simt::warp_reduce(kept_[i], simt::Plus{});
      if (threadIdx.x % 32 == 0 && sum != 0) {
        atomicAdd(&words[first_ + i], static_cast<ExactWord>(sum));
      }
    }
  }

 private:
  /// A term's three digits, one above and one below: those of terms of 2^-26 to 2^26 of the size.
  static constexpr int kWords = 5;
  static constexpr int kUnset = -2;

  /// Around the warp's largest term, if there is one.
  __device__ void choose(std::uint64_t bits) {
    const int digit = bits == 0 ? kUnset : exact_digit(bits);
    const int largest = simt::warp_reduce(digit, [](int a, int b) { return a > b ? a : b; });
    if (largest != kUnset) first_ = largest - 1;
  }

  int first_ = kUnset;
  std::int64_t kept_[kWords] = {};
};

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
