#pragma once

#include <vector>

#include "tessera/kernels/gemm_table.h"

// Functions that the CUDA backend exports for calibration, by name.
namespace tessera {

/// A call as cuBLASLt would run it at once.
struct GemmCandidates {
  GemmProblem problem;
  std::vector<GemmAlgorithm> algorithms{};  ///< in the heuristic's order; empty: it cannot
};

using FindGemmCandidates = void(const GemmArgs& args, CudaStream& stream, int most,
                                GemmCandidates& candidates);
inline constexpr const char* kFindGemmCandidates = "tessera_cuda_find_gemm_candidates";

using FillGemmMachine = void(int ordinal, GemmMachine& machine);
inline constexpr const char* kFillGemmMachine = "tessera_cuda_fill_gemm_machine";

}  // namespace tessera
