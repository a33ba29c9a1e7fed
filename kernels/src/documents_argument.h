#pragma once

#include "tessera/kernels/kernel_table.h"

namespace tessera {

/// Throws Error{kInvalidArgument} unless `starts` is empty or contiguous (batch, length) int32.
void check_starts(const char* kernel, const TensorView& starts, std::int64_t batch,
                  std::int64_t length);

/// Checks its contents, which are in host memory; see [Note: documents].
void check_start_values(const char* kernel, const TensorView& starts);

}  // namespace tessera
