#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/silu_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// SiLU. With the logistic function s(x) = 1 / (1 + exp(-x)), y = x s and dy/dx = s + x s (1 - s).
// Traffic: forward reads x and writes y, backward reads x and dy and writes dx.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// exp(-x): s = 1 / (1 + e) and 1 - s = e / (1 + e).
HWY_INLINE FloatVec exp_minus(FloatVec x) { return exp(hn::Neg(x)); }

template <typename T>
void silu_forward_typed(const T* x, T* y, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto v = load_n(x + i, count);
    store_n(hn::Mul(v, reciprocal(hn::Add(splat(1.0F), exp_minus(v)))), y + i, count);
  });
}

template <typename T>
void silu_backward_typed(const T* x, const T* dy, T* dx, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    const auto v = load_n(x + i, count);
    const auto e = exp_minus(v);
    const auto s = reciprocal(hn::Add(splat(1.0F), e));
    // s (1 - s) = s (s e); e is at most 2.4e38 where s is no less than 4e-39.
    const auto derivative = hn::MulAdd(v, hn::Mul(s, hn::Mul(s, e)), s);
    store_n(hn::Mul(load_n(dy + i, count), derivative), dx + i, count);
  });
}

void silu_forward_range(const SiluForwardArgs& args, std::int64_t begin, std::int64_t end) {
  if (args.x.dtype == DType::kBFloat16) {
    silu_forward_typed(args.x.as<bfloat16>() + begin, args.y.as<bfloat16>() + begin, end - begin);
  } else {
    silu_forward_typed(args.x.as<float>() + begin, args.y.as<float>() + begin, end - begin);
  }
}

void silu_backward_range(const SiluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = end - begin;
  if (args.x.dtype == DType::kBFloat16) {
    silu_backward_typed(args.x.as<bfloat16>() + begin, args.dy.as<bfloat16>() + begin,
                        args.dx.as<bfloat16>() + begin, n);
  } else {
    silu_backward_typed(args.x.as<float>() + begin, args.dy.as<float>() + begin,
                        args.dx.as<float>() + begin, n);
  }
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(silu_forward_range);
HWY_EXPORT(silu_backward_range);

/// Elements per chunk: 16 Ki of them take some 10 us, well above the cost of waking a thread; a
/// multiple of every vector length, so that the split changes no bit.
constexpr std::int64_t kGrain = 16384;

}  // namespace

void silu_forward(const SiluForwardArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(silu_forward_range)(args, begin, end);
  });
}

void silu_backward(const SiluBackwardArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(silu_backward_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
