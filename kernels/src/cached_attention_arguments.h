#pragma once

#include <cstdint>

#include "tessera/kernels/kernel_table.h"

namespace tessera {

struct CachedAttentionSizes {
  std::int64_t rows, length, heads, kv_heads, width;
  std::int64_t window;  ///< positions that a query sees, itself included

  /// Queries that a head of keys and values serves.
  std::int64_t group() const { return heads / kv_heads; }
  /// The position of a row.
  std::int64_t position(std::int64_t row) const { return length - rows + row; }
};

/// Throws Error{kInvalidArgument} unless shapes, dtypes and strides fit.
CachedAttentionSizes check_cached_attention(const CachedAttentionArgs& args);

}  // namespace tessera
