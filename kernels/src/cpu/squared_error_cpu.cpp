#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/squared_error_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// Mean squared error of each row, loss = mean of d^2 with d = x - target, and its gradient in place
// of x, 2 d scale / C. Traffic: x and targets once, x once more for the gradient.
//
// The sum runs over chunks of 2048 elements, in fp32 over 32 lanes (element j belongs to lane j mod
// 32) which are then added as a tree, whatever the vector length; chunks are added in fp64.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kSumLanes = 32;
constexpr std::int64_t kSumChunk = 2048;

/// The sum of d^2 over up to kSumChunk elements. Writes factor * d over x if kGradient.
template <bool kGradient, typename T>
HWY_INLINE float chunk_of_squares(T* x, const float* targets, std::int64_t n, float factor) {
  const FloatTag d;
  HWY_ALIGN float sums[kSumLanes] = {};
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto error = hn::Sub(load_n(x + i, count), load_n(targets + i, count));
    float* const lanes = sums + i % kSumLanes;
    hn::Store(hn::Add(hn::Load(d, lanes), hn::Mul(error, error)), d, lanes);
    if constexpr (kGradient) store_n(hn::Mul(error, splat(factor)), x + i, count);
  });
  for (std::int64_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (std::int64_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0];
}

template <bool kGradient, typename T>
void squared_error_rows(const SquaredErrorArgs& args, T* x, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = args.x.shape[1];
  const double scale = args.scale ? static_cast<double>(*args.scale.as<float>()) : 1.0;
  const auto factor = static_cast<float>(2.0 * scale / static_cast<double>(n));
  const float* const targets = args.targets.as<float>();
  for (std::int64_t row = begin; row < end; ++row) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < n; i += kSumChunk) {
      const std::int64_t at = row * n + i;
      const auto chunk = HWY_MIN(kSumChunk, n - i);
      sum += static_cast<double>(chunk_of_squares<kGradient>(x + at, targets + at, chunk, factor));
    }
    args.losses.as<float>()[row] = static_cast<float>(sum / static_cast<double>(n));
  }
}

template <typename T>
void squared_error_typed(const SquaredErrorArgs& args, T* x, std::int64_t begin, std::int64_t end) {
  if (args.gradient) {
    squared_error_rows<true>(args, x, begin, end);
  } else {
    squared_error_rows<false>(args, x, begin, end);
  }
}

void squared_error_range(const SquaredErrorArgs& args, std::int64_t begin, std::int64_t end) {
  with_float_type(args.x.dtype, [&]<typename T>(T) HWY_ATTR {
    squared_error_typed(args, args.x.as<T>(), begin, end);
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(squared_error_range);

}  // namespace

void squared_error(const SquaredErrorArgs& args, Stream&) {
  check_arguments(args);
  // At least 16 Ki elements per chunk: a few microseconds of memory traffic.
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / args.x.shape[1]);
  parallel_for(args.x.shape[0], grain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(squared_error_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
