#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/cuda_launch.h"
#include "tessera/core/tensor.h"

// In which order a GPU adds up the columns of a matrix (rows, C), whichever kernel does it: the one
// that makes gradients of biases, or LayerNorm's backward on its way. So a sum that falls out of
// the one may be taken for that of the other, with the same bits.
//
// Rows are dealt out to slabs in turns, and those of a slab to groups in turns. A group adds its
// rows in order, a slab its groups in order, into partial sums (slabs, C), fp32. Of these, lane l
// of 16 adds those of the slabs l mod 16 in order, then the lanes are added in order. The number of
// slabs and of groups depends on the sizes alone.
namespace tessera::cuda {

/// Threads of a block of LayerNorm's backward: two blocks of so many fit a multiprocessor with
/// kSlabRegisters each; of a row of 1600 in 16 bits, 224 threads, three.
inline constexpr int kSlabThreads = 320;
inline constexpr int kSlabRegisters = 96;

struct ColumnSlabs {
  std::int64_t slabs = 0;
  int groups = 1;
  int group_threads = kSlabThreads;  ///< of LayerNorm's backward, for a row
  bool in_registers = false;         ///< a row fits them, with two vectors of 16 bytes to a thread
  bool two_vectors = false;          ///< it needs two

  int threads() const { return groups * group_threads; }
};

/// The slabs of (rows, width), of elements of which a vector of 16 bytes has `vector_size`.
inline ColumnSlabs column_slabs(std::int64_t rows, std::int64_t width, int vector_size) {
  constexpr int kRegistersPerMultiprocessor = 65536;
  constexpr std::int64_t kMinRows = 16;  // fewer would not repay a row of partial sums
  ColumnSlabs slabs;
  const std::int64_t vectors = width / vector_size;
  slabs.in_registers = width % vector_size == 0 && vectors <= 2 * kSlabThreads;
  if (slabs.in_registers) {
    slabs.two_vectors = vectors > kSlabThreads;
    if (!slabs.two_vectors) {
      slabs.group_threads = std::max(1, static_cast<int>(ceil_div(vectors, 32))) * 32;
    }
    slabs.groups = kSlabThreads / slabs.group_threads;
  }
  // There are as many slabs as blocks run at once, so that all end together.
  const std::int64_t most =
      kMultiprocessors *
      (slabs.two_vectors ? 1 : kRegistersPerMultiprocessor / (kSlabRegisters * slabs.threads()));
  slabs.slabs = std::min(most, ceil_div(rows, kMinRows));
  return slabs;
}

/// Partial sums of the slabs, `stride` elements from one slab's to the next one's, of which `sums`
/// (`width` each, one after another) are added up.
struct SlabSums {
  const float* partials;
  std::int64_t slabs, stride, width;

  /// first [+]= the first `width` columns' sums, second (which may be empty) [+]= those behind
  /// them; both fp32, bf16 or fp16, of one dtype.
  void add_into(const TensorView& first, const TensorView& second, bool accumulate,
                cudaStream_t stream) const;
};

}  // namespace tessera::cuda
