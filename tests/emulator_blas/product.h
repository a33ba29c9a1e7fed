#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>

// What fake_cublaslt.cpp accepts, and product.cpp computes. Matrices are column-major: element
// (i, j) is at i + j * ld.

struct FakeMatrixLayout {
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0, ld = 0;
  auto operator<=>(const FakeMatrixLayout&) const = default;
};

struct FakeMatmulDesc {
  cublasOperation_t a_operation = CUBLAS_OP_N, b_operation = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;  ///< of D's type; a gradient is written to it
  void* aux = nullptr;   ///< of D's type; D's rows and columns
  std::int64_t aux_ld = 0;
  // (1) fp32: by which the numbers of an operand in fp8 are multiplied.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  std::int8_t fast_accumulation = 0;
  auto operator<=>(const FakeMatmulDesc&) const = default;
};

namespace fake_cublaslt {

/// D (m, n) = epilogue(alpha op(A) (m, k) op(B) (k, n) + beta C).
struct Product {
  FakeMatmulDesc desc{};
  FakeMatrixLayout a_layout{}, b_layout{}, c_layout{}, d_layout{};
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  float alpha = 1.0F, beta = 0.0F;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;  ///< of what the algorithm needs
  int algorithm = 0;  ///< decides where it begins to add, and, if not 0, rounds each sum to fp32
  std::int64_t bias_load = 1, aux_load = 1;  ///< bytes of bias and aux that it loads at once
  unsigned milliseconds = 0;                 ///< that CUDA's events say it takes
  bool any_order = false;  ///< adds in another order each time, as in-place split-K may
  auto operator<=>(const Product&) const = default;
};

inline bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
inline std::int64_t size_of(cudaDataType_t type) {
  if (is_fp8(type)) return 1;
  return type == CUDA_R_32F ? 4 : 2;
}

inline bool has(cublasLtEpilogue_t epilogue, cublasLtEpilogue_t part) {
  return (static_cast<unsigned>(epilogue) & static_cast<unsigned>(part)) ==
         static_cast<unsigned>(part);
}

/// Computes it on the calling thread. Throws if bias or aux is not aligned for its loads.
void compute(const Product& product);

}  // namespace fake_cublaslt
