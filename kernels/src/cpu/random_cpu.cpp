#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/random_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/philox_simd.h"
#include "cpu/simd.h"

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// Normal numbers by Box-Muller from Philox words: random_normal() of philox.h, a vector at a time
// and with the same bits. Traffic: dst once; the arithmetic costs more.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR

// Highway's MulAdd rounds twice here, std::fma does not.
void fill_normal_range(const FillNormalArgs& args, std::int64_t begin, std::int64_t end) {
  float* const dst = args.dst.as<float>();
  for (std::int64_t i = begin; i < end; ++i) {
    dst[i] = std::fma(args.stddev, random_normal(args.key, args.first_index + i), args.mean);
  }
}

#else

/// Horner's rule, highest power first.
template <std::size_t kTerms>
HWY_INLINE FloatVec polynomial(const std::array<float, kTerms>& coefficients, FloatVec x) {
  auto p = splat(coefficients[0]);
  for (std::size_t i = 1; i < kTerms; ++i) p = hn::MulAdd(p, x, splat(coefficients[i]));
  return p;
}

HWY_INLINE FloatVec to_float(WordVec word) {
  return hn::ConvertTo(FloatTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), word));
}

HWY_INLINE FloatVec log_positive(FloatVec x) {
  using P = NormalPolynomials;
  const WordTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto root_half = hn::Set(d, P::kSqrtHalf);
  const auto bits = hn::Sub(hn::BitCast(d, x), root_half);
  const auto exponent = hn::ConvertTo(FloatTag(), hn::ShiftRight<23>(hn::BitCast(di, bits)));
  const auto mantissa = hn::Add(hn::And(bits, hn::Set(d, 0x7fffffU)), root_half);
  const auto f = hn::Sub(hn::BitCast(FloatTag(), mantissa), splat(1.0F));
  const auto square = hn::Mul(f, f);
  auto y =
      hn::MulAdd(polynomial(P::kLog, f), hn::Mul(f, square), hn::Mul(exponent, splat(P::kLn2Low)));
  y = hn::MulAdd(splat(-0.5F), square, y);
  return hn::MulAdd(exponent, splat(P::kLn2High), hn::Add(f, y));
}

HWY_INLINE void normal_pairs(WordVec radius_word, WordVec angle_word, FloatVec& first,
                             FloatVec& second) {
  using P = NormalPolynomials;
  const FloatTag df;
  const WordTag d;
  const auto uniform =
      hn::MulAdd(to_float(hn::ShiftRight<1>(radius_word)), splat(0x1p-31F), splat(0x1p-32F));
  const auto radius = hn::Sqrt(hn::Mul(splat(-2.0F), log_positive(uniform)));

  const auto quadrant = hn::ShiftRight<30>(hn::Add(angle_word, hn::Set(d, 0x20000000U)));
  const auto rest = hn::Sub(angle_word, hn::ShiftLeft<30>(quadrant));
  const auto x = hn::Mul(to_float(rest), splat(P::kRadians));
  const auto z = hn::Mul(x, x);
  const auto s = hn::MulAdd(hn::Mul(z, x), polynomial(P::kSin, z), x);
  const auto c =
      hn::MulAdd(hn::Mul(z, z), polynomial(P::kCos, z), hn::MulAdd(splat(-0.5F), z, splat(1.0F)));

  const auto one = hn::Set(d, 1U);
  const auto two = hn::Set(d, 2U);
  const auto swap = hn::RebindMask(df, hn::Eq(hn::And(quadrant, one), one));
  const auto cosine_sign = hn::ShiftLeft<30>(hn::And(hn::Add(quadrant, one), two));
  const auto sine_sign = hn::ShiftLeft<30>(hn::And(quadrant, two));
  first = hn::Mul(radius, hn::Xor(hn::IfThenElse(swap, s, c), hn::BitCast(df, cosine_sign)));
  second = hn::Mul(radius, hn::Xor(hn::IfThenElse(swap, c, s), hn::BitCast(df, sine_sign)));
}

void fill_normal_range(const FillNormalArgs& args, std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  float* const dst = args.dst.as<float>() + begin;
  const std::int64_t n = end - begin;
  const auto scaled = [&](FloatVec z)
                          HWY_ATTR { return hn::MulAdd(splat(args.stddev), z, splat(args.mean)); };
  for_each_philox_words(
      args.key, args.first_index + begin, n,
      [&](const PhiloxWords& words, std::int64_t offset) HWY_ATTR {
        FloatVec z0, z1, z2, z3;
        normal_pairs(words.w0, words.w1, z0, z1);
        normal_pairs(words.w2, words.w3, z2, z3);
        const std::int64_t count = 4 * float_lanes();
        if (offset >= 0 && offset + count <= n) {
          hn::StoreInterleaved4(scaled(z0), scaled(z1), scaled(z2), scaled(z3), d, dst + offset);
          return;
        }
        HWY_ALIGN float elements[HWY_MAX_BYTES];
        hn::StoreInterleaved4(scaled(z0), scaled(z1), scaled(z2), scaled(z3), d, elements);
        const std::int64_t from = HWY_MAX(std::int64_t{0}, -offset);
        const std::int64_t to = HWY_MIN(count, n - offset);
        std::memcpy(dst + offset + from, elements + from,
                    static_cast<std::size_t>(to - from) * sizeof(float));
      });
}

#endif

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(fill_normal_range);

}  // namespace

void fill_normal(const FillNormalArgs& args, Stream&) {
  check_arguments(args);
  // Some 10 us of arithmetic per chunk.
  parallel_for(args.dst.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(fill_normal_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
