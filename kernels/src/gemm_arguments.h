#pragma once

#include <cstdint>
#include <optional>

#include "tessera/kernels/kernel_table.h"

// Conditions that GemmArgs must satisfy on every device.
namespace tessera {

/// Sizes of C (m, n) = op(A) (m, k) op(B) (k, n), and the distances of rows as stored, in elements:
/// at least the width, which libraries want even where there is only one row.
struct GemmSizes {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
};

/// Throws Error{kInvalidArgument} unless shapes, strides and dtypes fit.
GemmSizes check_gemm(const GemmArgs& args);

/// The rest of a call when a kernel of its own does the bias gradient after it, or adds the
/// residual, or does GELU or its derivative; nothing if there is none of these.
std::optional<GemmArgs> without_epilogue(const GemmArgs& args);

}  // namespace tessera
