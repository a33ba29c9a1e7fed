// The sum of squares of a block of kNormBlock elements in fp64, compiled once per instruction set;
// see simd.h for how to include it.
#if defined(TESSERA_KERNELS_BLOCK_SQUARE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_BLOCK_SQUARE_H_
#undef TESSERA_KERNELS_BLOCK_SQUARE_H_
#else
#define TESSERA_KERNELS_BLOCK_SQUARE_H_
#endif

#include "cpu/simd.h"
#include "tessera/kernels/step_arguments.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

constexpr std::int64_t kSquareLanes = 8;
using DoubleTag = hn::CappedTag<double, kSquareLanes>;

HWY_INLINE hn::Vec<DoubleTag> load_doubles(const float* from) {
  const hn::Rebind<float, DoubleTag> d32;
  return hn::PromoteTo(DoubleTag(), hn::LoadU(d32, from));
}

HWY_INLINE hn::Vec<DoubleTag> load_doubles(const bfloat16* from) {
  const hn::Rebind<float, DoubleTag> d32;
  const hn::Rebind<std::uint32_t, DoubleTag> d32u;
  const hn::Rebind<std::uint16_t, DoubleTag> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  const auto floats = hn::BitCast(d32, hn::ShiftLeft<16>(hn::PromoteTo(d32u, bits)));
  return hn::PromoteTo(DoubleTag(), floats);
}

HWY_INLINE hn::Vec<DoubleTag> load_doubles(const float16* from) {
  HWY_ALIGN float floats[kSquareLanes];
  const DoubleTag d;
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) floats[i] = static_cast<float>(from[i]);
  return load_doubles(floats);
}

/// The order is the same for every vector length: lane j of eight sums elements j, j + 8, ...,
/// j + 56; then lanes are added as a tree, ((0+4) + (2+6)) + ((1+5) + (3+7)). A square of an fp32
/// is exact in fp64, so that fused multiply-adds change nothing.
template <typename T>
HWY_INLINE double block_square(const T* x) {
  const DoubleTag d;
  HWY_ALIGN double lane[kSquareLanes];
  for (std::int64_t j = 0; j < kSquareLanes; j += static_cast<std::int64_t>(hn::Lanes(d))) {
    auto sum = hn::Zero(d);
    for (std::int64_t k = j; k < kNormBlock; k += kSquareLanes) {
      const auto v = load_doubles(x + k);
      sum = hn::MulAdd(v, v, sum);
    }
    hn::Store(sum, d, lane + j);
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_BLOCK_SQUARE_H_
