#pragma once

#include <vector>

#include "tessera/kernels/weight_format.h"

namespace tessera {

/// Throws Error{kInvalidArgument} that names what does not fit.
void check_arguments(const DequantizeArgs& args);

/// The arguments for each of matrices_apart(), one after the other; none if there are none.
std::vector<DequantizeArgs> arguments_apart(const DequantizeArgs& args);

/// The factor of int8 codes and scales, as bitsandbytes has it: 1/127 in fp32.
inline constexpr float kInt8Step = 7.874015718698502e-3F;

}  // namespace tessera
