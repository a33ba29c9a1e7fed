#pragma once

#include <cstdint>

#include "tessera/kernels/kernel_table.h"

// Conditions that the arguments of layer normalisation must satisfy on every device.
namespace tessera {

/// The normalised tensors are (rows, width).
struct LayerNormSizes {
  std::int64_t rows = 0, width = 0;
};

/// Throw Error{kInvalidArgument} unless sizes and dtypes fit.
LayerNormSizes check_layer_norm(const LayerNormForwardArgs& args);
LayerNormSizes check_layer_norm(const LayerNormBackwardArgs& args);

}  // namespace tessera
