#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/relu_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// ReLU: y = max(x, 0), dx = dy where y > 0. What is compared is "not above 0", so NaN passes.
// Traffic: forward reads x and writes y, backward reads y and dy and writes dx.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// `value` where `x` is above 0 or NaN, else 0.
HWY_INLINE FloatVec where_above_zero(FloatVec x, FloatVec value) {
  return hn::IfThenZeroElse(hn::Le(x, splat(0.0F)), value);
}

template <typename T>
void relu_forward_typed(const T* x, T* y, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto v = load_n(x + i, count);
    store_n(where_above_zero(v, v), y + i, count);
  });
}

template <typename T>
void relu_backward_typed(const T* y, const T* dy, T* dx, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(where_above_zero(load_n(y + i, count), load_n(dy + i, count)), dx + i, count);
  });
}

void relu_forward_range(const ReluForwardArgs& args, std::int64_t begin, std::int64_t end) {
  if (args.x.dtype == DType::kBFloat16) {
    relu_forward_typed(args.x.as<bfloat16>() + begin, args.y.as<bfloat16>() + begin, end - begin);
  } else {
    relu_forward_typed(args.x.as<float>() + begin, args.y.as<float>() + begin, end - begin);
  }
}

void relu_backward_range(const ReluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = end - begin;
  if (args.y.dtype == DType::kBFloat16) {
    relu_backward_typed(args.y.as<bfloat16>() + begin, args.dy.as<bfloat16>() + begin,
                        args.dx.as<bfloat16>() + begin, n);
  } else {
    relu_backward_typed(args.y.as<float>() + begin, args.dy.as<float>() + begin,
                        args.dx.as<float>() + begin, n);
  }
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(relu_forward_range);
HWY_EXPORT(relu_backward_range);

/// Elements per chunk: a few microseconds of memory traffic.
constexpr std::int64_t kGrain = 16384;

}  // namespace

void relu_forward(const ReluForwardArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(relu_forward_range)(args, begin, end);
  });
}

void relu_backward(const ReluBackwardArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.y.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(relu_backward_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
