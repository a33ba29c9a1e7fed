#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gelu_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// GELU, tanh form. With u = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh(u)) is the logistic
// function s of 2u, so that y = x s without the cancellation of 1 + tanh(u) for negative x, and
//   dy/dx = s + x s (1 - s) 2u',  2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2).
// Traffic: forward reads x and writes y, backward reads x and dy and writes dx.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

constexpr float kTwoRootTwoOverPi = 1.59576912F;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715F;

/// exp(-2u): s = 1 / (1 + e) and 1 - s = e / (1 + e).
HWY_INLINE FloatVec exp_minus_2u(FloatVec x, FloatVec x2) {
  const auto factor = hn::MulAdd(x2, splat(-kTwoRootTwoOverPi * kCubic), splat(-kTwoRootTwoOverPi));
  return exp(hn::Mul(x, factor));
}

template <typename T>
void gelu_forward_typed(const T* x, T* y, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto v = load_n(x + i, count);
    const auto e = exp_minus_2u(v, hn::Mul(v, v));
    store_n(hn::Mul(v, reciprocal(hn::Add(splat(1.0F), e))), y + i, count);
  });
}

template <typename T>
void gelu_backward_typed(const T* x, const T* dy, T* dx, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto v = load_n(x + i, count);
    const auto v2 = hn::Mul(v, v);
    const auto e = exp_minus_2u(v, v2);
    const auto s = reciprocal(hn::Add(splat(1.0F), e));
    const auto slope =
        hn::MulAdd(v2, splat(3.0F * kTwoRootTwoOverPi * kCubic), splat(kTwoRootTwoOverPi));
    // s (1 - s) = s (s e); e is at most 2.4e38 where s is no less than 4e-39.
    const auto bell = hn::Mul(s, hn::Mul(s, e));
    const auto derivative = hn::MulAdd(hn::Mul(v, slope), bell, s);
    store_n(hn::Mul(load_n(dy + i, count), derivative), dx + i, count);
  });
}

void gelu_forward_range(const GeluForwardArgs& args, std::int64_t begin, std::int64_t end) {
  if (args.x.dtype == DType::kBFloat16) {
    gelu_forward_typed(args.x.as<bfloat16>() + begin, args.y.as<bfloat16>() + begin, end - begin);
  } else {
    gelu_forward_typed(args.x.as<float>() + begin, args.y.as<float>() + begin, end - begin);
  }
}

void gelu_backward_range(const GeluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = end - begin;
  if (args.x.dtype == DType::kBFloat16) {
    gelu_backward_typed(args.x.as<bfloat16>() + begin, args.dy.as<bfloat16>() + begin,
                        args.dx.as<bfloat16>() + begin, n);
  } else {
    gelu_backward_typed(args.x.as<float>() + begin, args.dy.as<float>() + begin,
                        args.dx.as<float>() + begin, n);
  }
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(gelu_forward_range);
HWY_EXPORT(gelu_backward_range);

/// Elements per chunk: 16 Ki of them take some 10 us, well above the cost of waking a thread; a
/// multiple of every vector length, so that the split changes no bit.
constexpr std::int64_t kGrain = 16384;

}  // namespace

void gelu_forward(const GeluForwardArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_forward_range)(args, begin, end);
  });
}

void gelu_backward(const GeluBackwardArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_backward_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
