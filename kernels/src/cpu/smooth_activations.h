// GELU and SiLU of a vector, compiled once per instruction set: see simd.h.

// Highway's include guard: toggles so that each target sees the header once.
#if defined(TESSERA_KERNELS_SMOOTH_ACTIVATIONS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_SMOOTH_ACTIVATIONS_H_
#undef TESSERA_KERNELS_SMOOTH_ACTIVATIONS_H_
#else
#define TESSERA_KERNELS_SMOOTH_ACTIVATIONS_H_
#endif

#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

/// The tanh form. With u = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh(u)) is the logistic
/// function s of 2u, so that y = x s without the cancellation of 1 + tanh(u) for negative x, and
///   dy/dx = s + x s (1 - s) 2u',  2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2).
struct Gelu {
  static constexpr float kTwoRootTwoOverPi = 1.59576912F;  // 2 sqrt(2/pi)
  static constexpr float kCubic = 0.044715F;

  /// exp(-2u): s = 1 / (1 + e) and 1 - s = e / (1 + e).
  static HWY_INLINE FloatVec exp_minus_2u(FloatVec x, FloatVec x2) {
    const auto factor =
        hn::MulAdd(x2, splat(-kTwoRootTwoOverPi * kCubic), splat(-kTwoRootTwoOverPi));
    return exp(hn::Mul(x, factor));
  }
  static HWY_INLINE FloatVec forward(FloatVec x) {
    const auto e = exp_minus_2u(x, hn::Mul(x, x));
    return hn::Mul(x, reciprocal(hn::Add(splat(1.0F), e)));
  }
  static HWY_INLINE FloatVec backward(FloatVec x, FloatVec dy) {
    const auto x2 = hn::Mul(x, x);
    const auto e = exp_minus_2u(x, x2);
    const auto s = reciprocal(hn::Add(splat(1.0F), e));
    const auto slope =
        hn::MulAdd(x2, splat(3.0F * kTwoRootTwoOverPi * kCubic), splat(kTwoRootTwoOverPi));
    // s (1 - s) = s (s e); e is at most 2.4e38 where s is no less than 4e-39.
    const auto bell = hn::Mul(s, hn::Mul(s, e));
    return hn::Mul(dy, hn::MulAdd(hn::Mul(x, slope), bell, s));
  }
};

/// With the logistic function s(x) = 1 / (1 + exp(-x)), y = x s and dy/dx = s + x s (1 - s).
struct Silu {
  static HWY_INLINE FloatVec forward(FloatVec x) {
    return hn::Mul(x, reciprocal(hn::Add(splat(1.0F), exp(hn::Neg(x)))));
  }
  static HWY_INLINE FloatVec backward(FloatVec x, FloatVec dy) {
    const auto e = exp(hn::Neg(x));
    const auto s = reciprocal(hn::Add(splat(1.0F), e));
    // s (1 - s) = s (s e), as for GELU.
    return hn::Mul(dy, hn::MulAdd(x, hn::Mul(s, hn::Mul(s, e)), s));
  }
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_KERNELS_SMOOTH_ACTIVATIONS_H_
