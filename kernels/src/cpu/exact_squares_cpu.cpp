#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/exact_squares_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"
#include "cpu/stream_store.h"

#include "cpu/cpu_kernels.h"
#include "cpu/exact_accumulator.h"
#include "cpu/parallel.h"
#include "exact_sum_arguments.h"

// Sums of squares of blocks of 64 elements, in fp64. The order is the same for every vector length:
// lane j of eight sums elements j, j + 8, ..., j + 56; then lanes are added as a tree,
// ((0+4) + (2+6)) + ((1+5) + (3+7)). A square of an fp32 is exact in fp64, so that fused
// multiply-adds change nothing. The blocks are added exactly (exact_sum.h): each thread adds its
// own, and then its words to the result. Traffic: x once.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kLanes = 8;
using DoubleTag = hn::CappedTag<double, kLanes>;

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
  HWY_ALIGN float floats[kLanes];
  const DoubleTag d;
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) floats[i] = static_cast<float>(from[i]);
  return load_doubles(floats);
}

template <typename T>
HWY_INLINE double block_square(const T* x) {
  const DoubleTag d;
  HWY_ALIGN double lane[kLanes];
  for (std::int64_t j = 0; j < kLanes; j += static_cast<std::int64_t>(hn::Lanes(d))) {
    auto sum = hn::Zero(d);
    for (std::int64_t k = j; k < kNormBlock; k += kLanes) {
      const auto v = load_doubles(x + k);
      sum = hn::MulAdd(v, v, sum);
    }
    hn::Store(sum, d, lane + j);
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

template <typename T>
void add_blocks(const T* x, std::int64_t begin, std::int64_t end, ExactAccumulator& sum) {
  constexpr std::int64_t kLineElements = 64 / sizeof(T);
  for (std::int64_t i = begin; i < end; ++i) {
    const T* const block = x + i * kNormBlock;
    for (std::int64_t k = 0; k < kNormBlock; k += kLineElements) prefetch_ahead(block + k, 2048);
    sum.add(block_square(block));
  }
}

void exact_squares_range(const ExactSquaresArgs& args, std::int64_t begin, std::int64_t end) {
  ExactAccumulator sum;
  with_float_type(args.x.dtype,
                  [&]<typename T>(T) HWY_ATTR { add_blocks(args.x.as<T>(), begin, end, sum); });
  sum.add_to(args.words.as<std::int64_t>());
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(exact_squares_range);

}  // namespace

void exact_squares(const ExactSquaresArgs& args, Stream&) {
  check_arguments(args);
  // 256 blocks are 64 KiB of fp32: some microseconds.
  parallel_for(args.x.numel() / kNormBlock, 256, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(exact_squares_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
