#pragma once

#include "gemm_arguments.h"

namespace tessera::cpu {

/// gemm() of codes of fp8, which have been checked.
void gemm_fp8(const GemmArgs& args, const GemmSizes& sizes, Stream& stream);

}  // namespace tessera::cpu
