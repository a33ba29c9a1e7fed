#pragma once

#include "op_support.h"

namespace tessera::ops {

/// scale_columns by numbers (C elements) to which no gradient flows. `x` becomes the product.
Value scale_columns_by(Tape& tape, Value x, Tensor scale, std::int64_t first_column);

}  // namespace tessera::ops
