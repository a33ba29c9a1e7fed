#pragma once

#include "cuda/cuda_launch.h"
#include "simt.h"

// GELU's tanh form and SiLU as x s(z) with the logistic function s(z) = 1 / (1 + exp(-z)).
namespace tessera::cuda {

/// x s(z); `exponent`: -z log2(e).
__device__ inline float times_logistic(float x, float exponent) {
  return __fdividef(x, 1.0F + simt::exp2_approx(exponent));
}

/// s(z), and the derivative s + x s (1 - s) z' of x s(z).
struct Logistic {
  float s, slope;
};
/// `x_slope`: x z'.
__device__ inline Logistic logistic(float x_slope, float exponent) {
  // Below 2^126, so that s e is a number.
  const float e = simt::exp2_approx(fminf(exponent, 125.0F));
  const float s = __fdividef(1.0F, 1.0F + e);
  return {s, fmaf(x_slope, s * (s * e), s)};
}

/// The common part of functions of this kind.
template <typename Function>
struct SmoothActivation {
  __device__ static float forward(float x) { return times_logistic(x, Function::exponent(x)); }
  /// s(z) and the derivative at x.
  __device__ static Logistic at(float x) {
    return logistic(Function::x_slope(x), Function::exponent(x));
  }
  __device__ static float backward(float x, float dy) { return dy * at(x).slope; }
};

/// The tanh form. With u = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh(u)) is s(z) of z = 2u, so
/// that y = x s without the cancellation of 1 + tanh(u) for negative x, and
///   z' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2).
struct Gelu : SmoothActivation<Gelu> {
  static constexpr float kTwoRootTwoOverPi = 1.59576912F;  // 2 sqrt(2/pi)
  static constexpr float kCubic = 0.044715F;

  __device__ static float exponent(float x) {
    return x * fmaf(x * x, -kTwoRootTwoOverPi * kCubic * kLog2E, -kTwoRootTwoOverPi * kLog2E);
  }
  __device__ static float x_slope(float x) {
    return x * fmaf(x * x, 3.0F * kTwoRootTwoOverPi * kCubic, kTwoRootTwoOverPi);
  }
};

/// The exact form, x Phi(x), whose derivative is Phi(x) + x phi(x).
struct ErfGelu {
  __device__ static float phi(float x) { return 0.5F * erfcf(-0.707106781F * x); }
  __device__ static float forward(float x) { return x * phi(x); }
  __device__ static float backward(float x, float dy) {
    const float bell = 0.398942280F * simt::exp2_approx(-0.5F * kLog2E * x * x);
    return dy * fmaf(x, bell, phi(x));
  }
};

/// The derivative of tanh is taken from its output y: 1 - y^2.
struct Tanh {
  __device__ static float forward(float x) { return tanhf(x); }
  __device__ static float backward(float y, float dy) { return dy * fmaf(-y, y, 1.0F); }
};

/// y = x s(x).
struct Silu : SmoothActivation<Silu> {
  __device__ static float exponent(float x) { return -kLog2E * x; }
  __device__ static float x_slope(float x) { return x; }
};

}  // namespace tessera::cuda
