#pragma once

#include <cstdint>

#include "tessera/core/dtype.h"

// Matrix products for the CPU's kernels: gemm itself, and attention, which multiplies blocks.
namespace tessera::cpu {

/// One operand: rows of `stride` elements, transposed when read as op(X).
struct Matrix {
  const void* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
};

/// C (m, n) = op(A) (m, k) op(B) (k, n) [+ bias (n)] [+ C]. C's rows are `c_stride` elements apart.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  Matrix a, b;
  void* c = nullptr;
  std::int64_t c_stride = 0;
  const void* bias = nullptr;
  bool accumulate = false;
  DType dtype = DType::kFloat32;    ///< of A, B and the bias: fp32, bf16 or fp16
  DType c_dtype = DType::kFloat32;  ///< fp32, or dtype
};

/// Computes the product on team_threads() threads. Any of m, n, k may be 0. Safe to call from
/// several threads at once; a call of a shape that this thread has used before costs about a
/// microsecond over the arithmetic.
void multiply(const Product& product);

/// The ways of a product of bf16 operands, between which `multiply` chooses by the processor (see
/// [Note: bf16 products] in gemm_cpu.cpp); declared here for the tests. The first needs k > 0 and
/// a processor on which oneDNN multiplies bf16; the second widens blocks to fp32 and multiplies
/// those, anywhere, and fp16 as well.
bool onednn_multiplies_bf16();
void multiply_bf16(const Product& product);
void multiply_widened(const Product& product);

/// C = [C +] [bias], where a product starts from; fp32 C, bias of `product.dtype`.
void start_product(const Product& product);

}  // namespace tessera::cpu
