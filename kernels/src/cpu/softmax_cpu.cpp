#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/softmax_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>
#include <limits>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// Softmax of each row: y = exp(x - m) / sum, m the largest of the row; and its backward,
// dx = y (dy - sum of dy y). x, y (rows, C). A row is one thread's: its sum is the same for any
// number of threads. Traffic: forward reads x and writes y, backward reads y and dy and writes dx;
// what is read again of a row is in the cache.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void softmax_row(const T* x, T* y, std::int64_t columns) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  auto largest = splat(kNone);
  for_each_vector(columns, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    largest = hn::Max(largest, load_n(x + i, count, kNone));
  });
  const auto shift = splat(max_lanes(largest));
  auto sum = splat(0.0F);
  // Lanes past the end add exp(-inf), which is 1e-38 here, to a sum of at least 1.
  for_each_vector(columns, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    sum = hn::Add(sum, exp(hn::Sub(load_n(x + i, count, kNone), shift)));
  });
  const auto inverse = splat(1.0F / sum_lanes(sum));
  for_each_vector(columns, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(hn::Mul(exp(hn::Sub(load_n(x + i, count, kNone), shift)), inverse), y + i, count);
  });
}

template <typename T>
void softmax_gradient_row(const T* y, const T* dy, T* dx, std::int64_t columns) {
  auto sum = splat(0.0F);
  for_each_vector(columns, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    sum = hn::MulAdd(load_n(y + i, count), load_n(dy + i, count), sum);
  });
  const auto dot = splat(sum_lanes(sum));
  for_each_vector(columns, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto difference = hn::Sub(load_n(dy + i, count), dot);
    store_n(hn::Mul(load_n(y + i, count), difference), dx + i, count);
  });
}

void softmax_rows(const SoftmaxForwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = args.x.shape[1];
  with_float_type(args.x.dtype, [&]<typename T>(T) HWY_ATTR {
    for (std::int64_t row = begin; row < end; ++row) {
      softmax_row(args.x.as<T>() + row * columns, args.y.as<T>() + row * columns, columns);
    }
  });
}

void softmax_gradient_rows(const SoftmaxBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = args.y.shape[1];
  with_float_type(args.y.dtype, [&]<typename T>(T) HWY_ATTR {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t at = row * columns;
      softmax_gradient_row(args.y.as<T>() + at, args.dy.as<T>() + at, args.dx.as<T>() + at,
                           columns);
    }
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(softmax_rows);
HWY_EXPORT(softmax_gradient_rows);

/// Rows per chunk: at least 8 Ki elements, some 10 us.
std::int64_t grain_of(const TensorView& matrix) {
  return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, matrix.shape[1]));
}

}  // namespace

void softmax_forward(const SoftmaxForwardArgs& args, Stream&) {
  check_arguments(args);
  if (args.x.numel() == 0) return;
  parallel_for(args.x.shape[0], grain_of(args.x), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(softmax_rows)(args, begin, end);
  });
}

void softmax_backward(const SoftmaxBackwardArgs& args, Stream&) {
  check_arguments(args);
  if (args.y.numel() == 0) return;
  parallel_for(args.y.shape[0], grain_of(args.y), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(softmax_gradient_rows)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
