#pragma once

#include <cstdint>
#include <vector>

#include "bench/kernel_cases.h"

namespace tessera::bench {

/// The GEMMs of a step of GPT-2 124M's block and head over `tokens` tokens, as the step asks for
/// them, with what it wants along with the product: "gemm/forward/bf16/768->2304" is that of a
/// linear layer x (T, 768) -> y (T, 2304).
std::vector<KernelCase> gemm_cases(std::int64_t tokens, DType dtype);

}  // namespace tessera::bench
