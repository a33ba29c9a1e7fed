#pragma once

#include "tessera/kernels/kernel_table.h"

// Conditions on arguments of the kernels between projections and attention, on every device.
namespace tessera {

struct HeadsSizes {
  std::int64_t rows = 0;  ///< B L
  std::int64_t length = 0;
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t width = 0;   ///< D
  std::int64_t angles = 0;  ///< R/2

  std::int64_t packed_heads() const { return heads + 2 * kv_heads; }
  std::int64_t group() const { return kv_heads == 0 ? 0 : heads / kv_heads; }
};

/// Throws Error{kInvalidArgument} unless shapes and dtypes fit.
HeadsSizes check_heads(const HeadsForwardArgs& args);
HeadsSizes check_heads(const HeadsBackwardArgs& args);

}  // namespace tessera
