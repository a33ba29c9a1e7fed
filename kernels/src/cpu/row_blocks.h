#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/core/tensor.h"

// Sums over rows that do not depend on the thread count: rows are cut into blocks by a rule that
// knows only their number, each block is summed by one thread into a row of partial sums, and these
// are added in block order.
namespace tessera::cpu {

/// How `rows` rows are cut.
struct RowBlocks {
  explicit RowBlocks(std::int64_t row_count)
      : rows(row_count), size(std::max(kMinRows, (row_count + kMaxBlocks - 1) / kMaxBlocks)) {}

  std::int64_t count() const { return (rows + size - 1) / size; }
  std::int64_t begin(std::int64_t block) const { return block * size; }
  std::int64_t end(std::int64_t block) const { return std::min(rows, (block + 1) * size); }

  /// Few enough blocks that the partial sums are small beside the rows, enough for many cores.
  static constexpr std::int64_t kMaxBlocks = 128;
  static constexpr std::int64_t kMinRows = 16;

  std::int64_t rows;
  std::int64_t size;
};

/// out (n) = [out +] partial_0 + partial_1 + ..., in that order, rounded once to out's dtype.
/// Partial i is partials[i * stride, i * stride + n).
void combine_blocks(const float* partials, std::int64_t blocks, std::int64_t stride,
                    const TensorView& out, bool accumulate);

}  // namespace tessera::cpu
