#pragma once

#include <string_view>

#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {

/// Throws Error{kInvalidArgument} unless `key` is a RandomKey in memory.
inline void check_random_key(std::string_view name, const TensorView& key) {
  require(
      key && key.dtype == DType::kInt64 && key.numel() == kRandomKeyWords && key.is_contiguous(),
      ErrorCode::kInvalidArgument, name, " is ", to_string(key.dtype), " of shape ", key.shape,
      ", expected ", kRandomKeyWords, " contiguous int64 in memory");
}

}  // namespace tessera
