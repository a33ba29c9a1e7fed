// Vector helpers that the CPU's kernels share, compiled once per instruction set.
//
// A kernel file <name>_cpu.cpp is laid out as:
//
//   #include "simd_targets.h"
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "cpu/<name>_cpu.cpp"
//   #include <hwy/foreach_target.h>
//   #include "simd.h"
//   ... other headers ...
//
//   HWY_BEFORE_NAMESPACE();
//   namespace tessera::cpu::HWY_NAMESPACE { namespace { /* loops over a range */ } }
//   HWY_AFTER_NAMESPACE();
//
//   #if HWY_ONCE
//   namespace tessera::cpu {
//   HWY_EXPORT(loop);   // launchers check arguments and split the work, then call
//   ... parallel_for(n, grain, [&](auto begin, auto end) { HWY_DYNAMIC_DISPATCH(loop)(...); });
//   }
//   #endif
//
// Lambdas inside the per-target namespace need HWY_ATTR between `)` and `{`.

// Highway's include guard: toggles so that each target sees the header once.
#if defined(TESSERA_KERNELS_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_SIMD_H_
#undef TESSERA_KERNELS_SIMD_H_
#else
#define TESSERA_KERNELS_SIMD_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/float_types.h"
#include "tessera/core/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The tag of a full vector of floats, which all arithmetic uses, and the vector.
using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
/// The tag of as many bf16 or fp16 elements, as bits.
using HalfTag = hn::Rebind<std::uint16_t, FloatTag>;

constexpr std::int64_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
constexpr int kToNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#endif

HWY_INLINE std::int64_t float_lanes() { return static_cast<std::int64_t>(hn::Lanes(FloatTag())); }

HWY_INLINE FloatVec splat(float value) { return hn::Set(FloatTag(), value); }

/// A full vector of fp32, bf16 or fp16 elements, as fp32.
HWY_INLINE FloatVec load(const float* from) { return hn::LoadU(FloatTag(), from); }
HWY_INLINE FloatVec load(const bfloat16* from) {
  const hn::RebindToUnsigned<FloatTag> d32;
  const auto bits = hn::LoadU(HalfTag(), reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

HWY_INLINE FloatVec load(const float16* from) {
#if HWY_TARGET == HWY_AVX2
  return FloatVec{_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
#elif HWY_TARGET == HWY_AVX3
  return FloatVec{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
#else
  HWY_ALIGN float lanes[kMaxLanes];
  for (std::int64_t i = 0; i < float_lanes(); ++i) lanes[i] = static_cast<float>(from[i]);
  return hn::Load(FloatTag(), lanes);
#endif
}

/// Words whose upper halves are `v`, no NaN, rounded to bf16, to nearest even; the lower halves
/// mean nothing. Not by vcvtneps2bf16, which flushes denormals: all targets give the same bits.
HWY_INLINE auto rounded_above_bfloat16(FloatVec v) {
  const hn::RebindToUnsigned<FloatTag> d32;
  const auto word = hn::BitCast(d32, v);
  const auto even = hn::And(hn::ShiftRight<16>(word), hn::Set(d32, 1U));
  return hn::Add(word, hn::Add(even, hn::Set(d32, std::uint32_t{0x7fff})));
}

/// The bits of a vector, rounded as tessera::bfloat16 rounds: NaN stays NaN.
HWY_INLINE auto rounded_bits(FloatVec v, bfloat16) {
  const hn::RebindToUnsigned<FloatTag> d32;
  const auto quiet = hn::Or(hn::BitCast(d32, v), hn::Set(d32, std::uint32_t{0x400000}));
  const auto is_number = hn::RebindMask(d32, hn::Eq(v, v));
  const auto words = hn::IfThenElse(is_number, rounded_above_bfloat16(v), quiet);
  return hn::TruncateTo(HalfTag(), hn::ShiftRight<16>(words));
}

/// By instructions whose bits are those of tessera::float16, or by that.
HWY_INLINE auto rounded_bits(FloatVec v, float16) {
#if HWY_TARGET == HWY_AVX2
  return hn::Vec<HalfTag>{_mm256_cvtps_ph(v.raw, kToNearestEven)};
#elif HWY_TARGET == HWY_AVX3
  return hn::Vec<HalfTag>{_mm512_cvtps_ph(v.raw, kToNearestEven)};
#else
  HWY_ALIGN float lanes[kMaxLanes];
  HWY_ALIGN float16 rounded[kMaxLanes];
  hn::Store(v, FloatTag(), lanes);
  for (std::int64_t i = 0; i < float_lanes(); ++i) rounded[i] = float16(lanes[i]);
  return hn::Load(HalfTag(), reinterpret_cast<const std::uint16_t*>(rounded));
#endif
}

/// Stores a full vector.
HWY_INLINE void store(FloatVec v, float* to) { hn::StoreU(v, FloatTag(), to); }
template <typename T>
HWY_INLINE void store(FloatVec v, T* to) {
  hn::StoreU(rounded_bits(v, T()), HalfTag(), reinterpret_cast<std::uint16_t*>(to));
}

/// The first `count` lanes, 0 <= count <= lanes; touches no memory beyond them. Loaded lanes after
/// them hold `rest`.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE FloatVec load_n(const float* from, std::int64_t count, float rest = 0.0F) {
  const auto mask = hn::FirstN(FloatTag(), static_cast<std::size_t>(count));
  return FloatVec{_mm512_mask_loadu_ps(splat(rest).raw, mask.raw, from)};
}
HWY_INLINE FloatVec load_n(const bfloat16* from, std::int64_t count, float rest = 0.0F) {
  if (count == float_lanes()) return load(from);
  const auto mask = hn::FirstN(FloatTag(), static_cast<std::size_t>(count));
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask.raw, from));
  return hn::IfThenElse(mask, FloatVec{_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))},
                        splat(rest));
}
HWY_INLINE FloatVec load_n(const float16* from, std::int64_t count, float rest = 0.0F) {
  if (count == float_lanes()) return load(from);
  const auto mask = hn::FirstN(FloatTag(), static_cast<std::size_t>(count));
  return hn::IfThenElse(mask, FloatVec{_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask.raw, from))},
                        splat(rest));
}
HWY_INLINE void store_n(FloatVec v, float* to, std::int64_t count) {
  const auto mask = hn::FirstN(FloatTag(), static_cast<std::size_t>(count));
  _mm512_mask_storeu_ps(to, mask.raw, v.raw);
}
HWY_INLINE void store_n(FloatVec v, bfloat16* to, std::int64_t count) {
  if (count == float_lanes()) return store(v, to);
  const auto mask = hn::FirstN(FloatTag(), static_cast<std::size_t>(count));
  _mm256_mask_storeu_epi16(to, mask.raw, rounded_bits(v, bfloat16()).raw);
}
HWY_INLINE void store_n(FloatVec v, float16* to, std::int64_t count) {
  if (count == float_lanes()) return store(v, to);
  const auto mask = hn::FirstN(FloatTag(), static_cast<std::size_t>(count));
  _mm256_mask_storeu_epi16(to, mask.raw, _mm512_cvtps_ph(v.raw, kToNearestEven));
}
#else
template <typename T>
HWY_INLINE FloatVec load_n(const T* from, std::int64_t count, float rest = 0.0F) {
  if (count == float_lanes()) return load(from);
  HWY_ALIGN T lanes[kMaxLanes] = {};
  // The minimum changes nothing: it tells the compiler that the copy fits.
  std::memcpy(lanes, from, static_cast<std::size_t>(std::min(count, kMaxLanes)) * sizeof(T));
  // `rest` joins after widening: it need not be representable in T.
  const auto mask = hn::FirstN(FloatTag(), static_cast<std::size_t>(count));
  return hn::IfThenElse(mask, load(lanes), splat(rest));
}
template <typename T>
HWY_INLINE void store_n(FloatVec v, T* to, std::int64_t count) {
  if (count == float_lanes()) return store(v, to);
  HWY_ALIGN T lanes[kMaxLanes];
  store(v, lanes);
  std::memcpy(to, lanes, static_cast<std::size_t>(std::min(count, kMaxLanes)) * sizeof(T));
}
#endif

/// Calls body(i, count) for the vectors that cover [0, n): count is the number of lanes in all but
/// the last, so that load_n and store_n cost a branch only there.
template <typename Body>
HWY_INLINE void for_each_vector(std::int64_t n, const Body& body) {
  const std::int64_t lanes = float_lanes();
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, lanes);
  if (i < n) body(i, n - i);
}

/// Sum and maximum over the lanes. The order of the sum depends on the number of lanes.
HWY_INLINE float sum_lanes(FloatVec v) { return hn::GetLane(hn::SumOfLanes(FloatTag(), v)); }
HWY_INLINE float max_lanes(FloatVec v) { return hn::GetLane(hn::MaxOfLanes(FloatTag(), v)); }

/// p 2^n for whole n in [-126, 127] and 0.5 < p < 2.
HWY_INLINE FloatVec times_power_of_two(FloatVec p, FloatVec n) {
#if HWY_TARGET == HWY_AVX3
  return FloatVec{_mm512_scalef_ps(p.raw, n.raw)};
#else
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(exponent)));
#endif
}

/// exp(x) within 2 ulp for |x| <= 87; saturates near 1e-38 and 2.4e38 beyond; NaN stays NaN.
/// exp(x) = 2^n exp(r), n = round(x / ln 2), r = x - n ln 2; exp(r) by a polynomial through the
/// Chebyshev nodes of [-ln 2 / 2, ln 2 / 2] (relative error 1.1e-8).
HWY_INLINE FloatVec exp(FloatVec x) {
  // In this order of operands, NaN passes x86's minimum and maximum.
  const auto clamped = hn::Min(splat(88.3F), hn::Max(splat(-87.0F), x));
  const auto n = hn::Round(hn::Mul(clamped, splat(1.44269504F)));
  // ln 2 in two parts, the first with so few bits that its multiples are exact.
  auto r = hn::NegMulAdd(n, splat(0.69140625F), clamped);
  r = hn::NegMulAdd(n, splat(0.00174093060F), r);
  auto p = hn::MulAdd(r, splat(0.00139261840F), splat(0.00836317893F));
  p = hn::MulAdd(p, r, splat(0.0416665561F));
  p = hn::MulAdd(p, r, splat(0.166665763F));
  p = hn::MulAdd(p, r, splat(0.5F));
  p = hn::MulAdd(p, r, splat(1.0F));
  p = hn::MulAdd(p, r, splat(1.0F));
  const auto result = times_power_of_two(p, n);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return result;
#else
  return hn::IfThenElse(hn::Eq(x, x), result, x);
#endif
}

/// 1 / x within 2 ulp for normal x whose reciprocal is normal; 1/x elsewhere may be 0 or denormal.
/// A division keeps the divider busy for 16 cycles per AVX-512 vector, longer than all of exp; this
/// is an estimate (14 bits on AVX-512, 11 on AVX2) and Newton steps, r' = r + r (1 - x r).
HWY_INLINE FloatVec reciprocal(FloatVec x) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  auto r = hn::ApproximateReciprocal(x);
  r = hn::MulAdd(r, hn::NegMulAdd(x, r, splat(1.0F)), r);
#if HWY_TARGET == HWY_AVX2
  r = hn::MulAdd(r, hn::NegMulAdd(x, r, splat(1.0F)), r);
#endif
  return r;
#else
  return hn::Div(splat(1.0F), x);
#endif
}

/// tanh(x) within 4 ulp; NaN stays NaN. An odd polynomial over an even one, of x clamped to where
/// fp32's tanh is 1: the coefficients of Eigen's generic_fast_tanh_float.
HWY_INLINE FloatVec tanh(FloatVec x) {
  // In this order of operands, NaN passes x86's minimum and maximum.
  const auto c = hn::Min(splat(7.90531111F), hn::Max(splat(-7.90531111F), x));
  const auto x2 = hn::Mul(c, c);
  auto p = hn::MulAdd(x2, splat(-2.76076847742355e-16F), splat(2.00018790482477e-13F));
  p = hn::MulAdd(x2, p, splat(-8.60467152213735e-11F));
  p = hn::MulAdd(x2, p, splat(5.12229709037114e-08F));
  p = hn::MulAdd(x2, p, splat(1.48572235717979e-05F));
  p = hn::MulAdd(x2, p, splat(6.37261928875436e-04F));
  p = hn::MulAdd(x2, p, splat(4.89352455891786e-03F));
  auto q = hn::MulAdd(x2, splat(1.19825839466702e-06F), splat(1.18534705686654e-04F));
  q = hn::MulAdd(x2, q, splat(2.26843463243900e-03F));
  q = hn::MulAdd(x2, q, splat(4.89352518554385e-03F));
  const auto result = hn::Div(hn::Mul(c, p), q);  // an estimate would have each target's own bits
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return result;
#else
  return hn::IfThenElse(hn::Eq(x, x), result, x);
#endif
}

/// cap * tanh(x / cap), given 1 / cap.
struct SoftCap {
  explicit SoftCap(float soft_cap) : cap(soft_cap), inverse(1.0F / soft_cap) {}
  float cap, inverse;

  HWY_INLINE FloatVec tanh_of(FloatVec x) const { return tanh(hn::Mul(x, splat(inverse))); }
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::Mul(tanh_of(x), splat(cap)); }
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_SIMD_H_
