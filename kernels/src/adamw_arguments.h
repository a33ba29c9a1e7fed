#pragma once

#include "tessera/kernels/kernel_table.h"

namespace tessera {

/// What AdamWArgs must satisfy on every device: throws Error{kInvalidArgument} unless shapes,
/// dtypes and segments fit.
void check_adamw(const AdamWArgs& args);

}  // namespace tessera
