#include "cpu/gemm_fp8_cpu.h"

#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/gemm_cpu.h"
#include "cpu/parallel.h"

// A GEMM of codes of fp8. Codes are exact in bf16, and the sums of their products are fp32, as in
// any GEMM of bf16; scales, bias and what is added follow in fp32, and C is rounded once.
//
// Layers on CPU ranks decode operands themselves, into memory that a plan accounts for.

namespace tessera::cpu {
namespace {

/// The numbers that codes stand for without a scale.
std::vector<bfloat16> values_of_codes(const TensorView& codes, Fp8Format format, Stream& stream) {
  std::vector<bfloat16> values(static_cast<std::size_t>(codes.numel()));
  auto unscaled = static_cast<std::int32_t>(layout_of(format).largest);  // whose scale is 1
  fp8_decode({.codes = codes.flat(),
              .amax = TensorView(&unscaled, DType::kInt32, Shape{1}),
              .y = TensorView(values.data(), DType::kBFloat16, Shape{codes.numel()}),
              .format = format},
             stream);
  return values;
}

float reciprocal_scale(const Fp8Operand& operand) {
  const auto word = static_cast<std::uint32_t>(*operand.amax.as<std::int32_t>());
  return 1.0F / fp8_scale(word, operand.format, operand.scales);
}

template <typename C>
void finish_row(const GemmArgs& args, const float* product, std::int64_t row, float scale) {
  C* const c = args.c.as<C>() + row * args.c.strides[0];
  const C* const added = args.accumulate ? c
                         : args.residual ? args.residual.as<C>() + row * args.c.shape[1]
                                         : nullptr;
  const bfloat16* const bias = args.bias ? args.bias.as<bfloat16>() : nullptr;
  for (std::int64_t j = 0; j < args.c.shape[1]; ++j) {
    float value = product[j] * scale;
    if (bias != nullptr) value += static_cast<float>(bias[j]);
    if (added != nullptr) value += static_cast<float>(added[j]);
    c[j] = C(value);
  }
}

}  // namespace

void gemm_fp8(const GemmArgs& args, const GemmSizes& sizes, Stream& stream) {
  const std::vector<bfloat16> a = values_of_codes(args.a, args.a_fp8.format, stream);
  const std::vector<bfloat16> b = values_of_codes(args.b, args.b_fp8.format, stream);
  std::vector<float> product(static_cast<std::size_t>(sizes.m * sizes.n));
  multiply({.m = sizes.m,
            .n = sizes.n,
            .k = sizes.k,
            .a = {a.data(), sizes.k, false},
            .b = {b.data(), sizes.k, true},
            .c = product.data(),
            .c_stride = sizes.n,
            .dtype = DType::kBFloat16,
            .c_dtype = DType::kFloat32});
  const float scale = reciprocal_scale(args.a_fp8) * reciprocal_scale(args.b_fp8);
  parallel_for(sizes.m, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* const from = product.data() + row * sizes.n;
      if (args.c.dtype == DType::kFloat32) {
        finish_row<float>(args, from, row, scale);
      } else {
        finish_row<bfloat16>(args, from, row, scale);
      }
    }
  });
}

}  // namespace tessera::cpu
