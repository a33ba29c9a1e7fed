#pragma once

#include "tessera/kernels/kernel_table.h"

namespace tessera {

/// Checks what CrossEntropyArgs must satisfy on every device, as far as that shows without reading
/// the targets: throws Error{kInvalidArgument} unless shapes and strides fit.
void check_cross_entropy(const CrossEntropyArgs& args);

}  // namespace tessera
