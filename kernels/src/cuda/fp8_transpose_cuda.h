#pragma once

#include "tessera/kernels/kernel_table.h"

namespace tessera::cuda {

/// fp8_encode() of arguments that have been checked and have transposed codes.
void fp8_encode_transposed(const Fp8EncodeArgs& args, Stream& stream);

}  // namespace tessera::cuda
