#pragma once

#include "tessera/kernels/fp8.h"

// What the kernels of fp8 demand of their arguments, on every device.
namespace tessera {

void check_arguments(const AmaxArgs& args);
void check_arguments(const Fp8EncodeArgs& args);
void check_arguments(const Fp8DecodeArgs& args);

}  // namespace tessera
