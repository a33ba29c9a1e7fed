#pragma once

#include <cstdint>

// What tests ask of the substitute for cuBLASLt.
namespace fake_cublaslt {

/// Algorithms that were looked for since the program began.
std::int64_t heuristics();

}  // namespace fake_cublaslt
