#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/mean_rows_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>
#include <limits>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// The mean of a sequence's rows, y[b] = sum over l of x[b, l] / L, and its backward,
// dx[b, l] = dy[b] / L. x (B, L, C), y (B, C). Rows are added in their order, in fp32. Traffic:
// forward reads x and writes y, backward reads dy and writes dx.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// Means of the sequences [begin, end).
void mean_rows_of(const MeanRowsForwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t length = args.x.shape[1], columns = args.x.shape[2];
  const auto divisor = splat(static_cast<float>(length));
  with_float_type(args.x.dtype, [&]<typename T>(T) HWY_ATTR {
    for (std::int64_t b = begin; b < end; ++b) {
      const T* const x = args.x.as<T>() + b * length * columns;
      T* const y = args.y.as<T>() + b * columns;
      for_each_vector(columns, [&](std::int64_t c, std::int64_t count) HWY_ATTR {
        auto sum = splat(0.0F);
        for (std::int64_t l = 0; l < length; ++l) {
          sum = hn::Add(sum, load_n(x + l * columns + c, count));
        }
        store_n(hn::Div(sum, divisor), y + c, count);
      });
    }
  });
}

void mean_rows_gradient_of(const MeanRowsBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t length = args.dx.shape[1], columns = args.dx.shape[2];
  const auto divisor = splat(static_cast<float>(length));
  with_float_type(args.dx.dtype, [&]<typename T>(T) HWY_ATTR {
    for (std::int64_t b = begin; b < end; ++b) {
      const T* const dy = args.dy.as<T>() + b * columns;
      T* const dx = args.dx.as<T>() + b * length * columns;
      for_each_vector(columns, [&](std::int64_t c, std::int64_t count) HWY_ATTR {
        const auto share = hn::Div(load_n(dy + c, count), divisor);
        for (std::int64_t l = 0; l < length; ++l) store_n(share, dx + l * columns + c, count);
      });
    }
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(mean_rows_of);
HWY_EXPORT(mean_rows_gradient_of);

/// Sequences per chunk: at least 16 Ki elements, some 10 us.
std::int64_t grain_of(const TensorView& x) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, x.shape[1] * x.shape[2]));
}

}  // namespace

void mean_rows_forward(const MeanRowsForwardArgs& args, Stream&) {
  check_arguments(args);
  if (args.y.numel() == 0) return;
  parallel_for(args.x.shape[0], grain_of(args.x), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(mean_rows_of)(args, begin, end);
  });
}

void mean_rows_backward(const MeanRowsBackwardArgs& args, Stream&) {
  check_arguments(args);
  if (args.dy.numel() == 0) return;
  parallel_for(args.dx.shape[0], grain_of(args.dx), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(mean_rows_gradient_of)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
