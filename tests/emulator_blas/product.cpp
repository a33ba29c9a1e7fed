#include "product.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "fake_cublaslt.h"
#include "tessera/core/dtype.h"
#include "tessera/kernels/fp8.h"

// The arithmetic: algorithm 0 adds terms in double and rounds the sum to float, the others round
// after each term and begin elsewhere; the epilogue is in float. Where cuBLASLt 13.1 was seen to
// round the sum to D's type first, on an H200, it is rounded here, too. Codes of fp8 are decoded;
// with fast accumulation, which Hopper's tensor cores do in 14 bits, sums lose the bits below those
// after every 32 terms.

namespace fake_cublaslt {
namespace {

using tessera::bfloat16;
using tessera::float16;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

float load(const void* data, cudaDataType_t type, std::int64_t i) {
  if (type == CUDA_R_16BF) return static_cast<float>(static_cast<const bfloat16*>(data)[i]);
  if (type == CUDA_R_16F) return static_cast<float>(static_cast<const float16*>(data)[i]);
  if (is_fp8(type)) {
    const auto format =
        type == CUDA_R_8F_E4M3 ? tessera::Fp8Format::kE4M3 : tessera::Fp8Format::kE5M2;
    return tessera::fp8_value(static_cast<const std::uint8_t*>(data)[i], format);
  }
  return static_cast<const float*>(data)[i];
}

void store(void* data, cudaDataType_t type, std::int64_t i, float value) {
  if (type == CUDA_R_16BF) {
    static_cast<bfloat16*>(data)[i] = bfloat16(value);
  } else if (type == CUDA_R_16F) {
    static_cast<float16*>(data)[i] = float16(value);
  } else {
    static_cast<float*>(data)[i] = value;
  }
}

float round_to(cudaDataType_t type, float value) {
  if (type == CUDA_R_16BF) return static_cast<float>(bfloat16(value));
  if (type == CUDA_R_16F) return static_cast<float>(float16(value));
  return value;
}

/// Whether the kernels for Hopper take it, which load and store by TMA.
bool fits_tma(const Product& p) {
  const auto fits = [](const void* address, const FakeMatrixLayout& layout) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0 &&
           layout.ld * size_of(layout.type) % 16 == 0;
  };
  return fits(p.a, p.a_layout) && fits(p.b, p.b_layout) && fits(p.c, p.c_layout) &&
         fits(p.d, p.d_layout);
}

/// Whether the product is rounded to D's type before anything is added to it: by kernels that let
/// the memory add it to C in place; by those for older GPUs, and behind a sum of parts, before a
/// bias.
bool rounds_product(const Product& p) {
  if (has(p.desc.epilogue, CUBLASLT_EPILOGUE_BIAS)) return p.workspace_bytes > 0 || !fits_tma(p);
  return p.c == p.d && p.beta == 1.0F && fits_tma(p);
}

/// op(X) as (rows, columns) with its columns one after another.
std::vector<float> pack(const void* data, const FakeMatrixLayout& layout,
                        cublasOperation_t operation) {
  std::vector<float> packed(at(layout.rows * layout.columns));
  const bool transposed = operation == CUBLAS_OP_T;
  for (std::int64_t j = 0; j < layout.columns; ++j) {
    for (std::int64_t i = 0; i < layout.rows; ++i) {
      const std::int64_t to = transposed ? j + i * layout.columns : i + j * layout.rows;
      packed[at(to)] = load(data, layout.type, i + j * layout.ld);
    }
  }
  return packed;
}

constexpr double kRootTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

double gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x)));
}

double gelu_slope(double x) {
  const double t = std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * kRootTwoOverPi * (1.0 + 3.0 * kCubic * x * x);
}

/// What follows the product of element (i, j).
float finish(const Product& p, float value, std::int64_t i, std::int64_t j) {
  const FakeMatmulDesc& desc = p.desc;
  const cudaDataType_t type = p.d_layout.type;
  if (has(desc.epilogue, CUBLASLT_EPILOGUE_BIAS)) value += load(desc.bias, type, i);
  const std::int64_t in_aux = i + j * desc.aux_ld;
  if (desc.epilogue == CUBLASLT_EPILOGUE_DGELU) {
    return static_cast<float>(static_cast<double>(value) *
                              gelu_slope(static_cast<double>(load(desc.aux, type, in_aux))));
  }
  if (!has(desc.epilogue, CUBLASLT_EPILOGUE_GELU)) return value;
  if (has(desc.epilogue, CUBLASLT_EPILOGUE_GELU_AUX)) store(desc.aux, type, in_aux, value);
  return static_cast<float>(gelu(static_cast<double>(value)));
}

void check_aligned(const void* address, std::int64_t load) {
  const auto bytes = static_cast<std::uintptr_t>(load);
  if (bytes == 0 || reinterpret_cast<std::uintptr_t>(address) % bytes == 0) return;
  throw std::runtime_error("misaligned address: what an epilogue reads or writes at once");
}

/// sums (m) += column (m) * factor.
void add_column(const float* column, double factor, bool rounds, std::vector<double>& sums) {
  const std::size_t m = sums.size();
  for (std::size_t i = 0; i < m; ++i) sums[i] += static_cast<double>(column[i]) * factor;
  if (!rounds) return;
  for (std::size_t i = 0; i < m; ++i) sums[i] = static_cast<double>(static_cast<float>(sums[i]));
}

/// The sum in 14 bits: 13 behind the leading one, truncated.
double shortened(double sum) {
  int exponent = 0;
  const double fraction = std::frexp(sum, &exponent);
  return std::ldexp(std::trunc(std::ldexp(fraction, 14)), exponent - 14);
}

}  // namespace

void compute(const Product& p) {
  check_aligned(p.desc.bias, p.bias_load);
  check_aligned(p.desc.aux, p.aux_load);
  // What a caller keeps in the workspace does not survive.
  if (p.workspace_bytes > 0) std::memset(p.workspace, 0xff, p.workspace_bytes);
  const std::int64_t m = p.d_layout.rows;
  const std::int64_t n = p.d_layout.columns;
  const bool b_transposed = p.desc.b_operation == CUBLAS_OP_T;
  const std::int64_t k = b_transposed ? p.b_layout.columns : p.b_layout.rows;
  const std::vector<float> a = pack(p.a, p.a_layout, p.desc.a_operation);
  const std::vector<float> b = pack(p.b, p.b_layout, p.desc.b_operation);
  static std::atomic<std::int64_t> calls{0};
  const std::int64_t first =
      p.any_order ? calls.fetch_add(1) * 7 % k : k * p.algorithm / kAlgorithms;
  const bool rounds = p.any_order || p.algorithm != 0;  // in-place split-K rounds to C's type
  const cudaDataType_t product_type = rounds_product(p) ? p.d_layout.type : CUDA_R_32F;
  double scale = static_cast<double>(p.alpha);
  if (p.desc.a_scale != nullptr) scale *= static_cast<double>(*p.desc.a_scale);
  if (p.desc.b_scale != nullptr) scale *= static_cast<double>(*p.desc.b_scale);
  std::vector<double> sums(at(m));
  for (std::int64_t j = 0; j < n; ++j) {
    std::fill(sums.begin(), sums.end(), 0.0);
    double gradient = 0.0;
    for (std::int64_t term = 0; term < k; ++term) {
      const std::int64_t l = (first + term) % k;
      const auto factor = static_cast<double>(b[at(l + j * k)]);
      gradient += factor;
      add_column(a.data() + l * m, factor, rounds, sums);
      if (p.desc.fast_accumulation != 0 && term % 32 == 31) {
        for (double& sum : sums) sum = shortened(sum);
      }
    }
    for (std::int64_t i = 0; i < m; ++i) {
      float value = round_to(product_type, static_cast<float>(scale * sums[at(i)]));
      if (p.beta != 0.0F) value += p.beta * load(p.c, p.c_layout.type, i + j * p.c_layout.ld);
      store(p.d, p.d_layout.type, i + j * p.d_layout.ld, finish(p, value, i, j));
    }
    if (p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
      store(p.desc.bias, p.d_layout.type, j, static_cast<float>(gradient));
    }
  }
}

}  // namespace fake_cublaslt
