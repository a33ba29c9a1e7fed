// GELU, SiLU and tanh of a vector, compiled once per instruction set: see simd.h.

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

/// The exact form, x Phi(x), whose derivative is Phi(x) + x phi(x). Phi(-|x|) is erfc(z) / 2 of
/// z = |x| / sqrt(2), by the approximation of erfc that Numerical Recipes has (Press et al.,
/// section 6.2; relative error 1.2e-7): with t = 1 / (1 + z / 2), t exp(-z^2 + a polynomial in t).
struct ErfGelu {
  static HWY_INLINE FloatVec half_square(FloatVec x) {
    return hn::Mul(hn::Mul(x, splat(-0.5F)), x);
  }
  static HWY_INLINE FloatVec phi(FloatVec x) {
    const auto z = hn::Mul(hn::Abs(x), splat(0.707106781F));
    const auto t = hn::Div(splat(1.0F), hn::MulAdd(z, splat(0.5F), splat(1.0F)));
    auto p = hn::MulAdd(t, splat(0.17087277F), splat(-0.82215223F));
    p = hn::MulAdd(t, p, splat(1.48851587F));
    p = hn::MulAdd(t, p, splat(-1.13520398F));
    p = hn::MulAdd(t, p, splat(0.27886807F));
    p = hn::MulAdd(t, p, splat(-0.18628806F));
    p = hn::MulAdd(t, p, splat(0.09678418F));
    p = hn::MulAdd(t, p, splat(0.37409196F));
    p = hn::MulAdd(t, p, splat(1.00002368F));
    p = hn::MulAdd(t, p, splat(-1.26551223F));
    const auto below = hn::Mul(hn::Mul(t, splat(0.5F)), exp(hn::Add(half_square(x), p)));
    return hn::IfThenElse(hn::Gt(x, splat(0.0F)), hn::Sub(splat(1.0F), below), below);
  }
  static HWY_INLINE FloatVec forward(FloatVec x) { return hn::Mul(x, phi(x)); }
  static HWY_INLINE FloatVec backward(FloatVec x, FloatVec dy) {
    const auto bell = hn::Mul(exp(half_square(x)), splat(0.398942280F));  // 1 / sqrt(2 pi)
    return hn::Mul(dy, hn::MulAdd(x, bell, phi(x)));
  }
};

/// The derivative of tanh is taken from its output y: 1 - y^2.
struct Tanh {
  static HWY_INLINE FloatVec forward(FloatVec x) { return tanh(x); }
  static HWY_INLINE FloatVec backward(FloatVec y, FloatVec dy) {
    return hn::Mul(dy, hn::NegMulAdd(y, y, splat(1.0F)));
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
