#pragma once

#include <cmath>
#include <type_traits>

#include "cuda/cuda_launch.h"
#include "simt.h"

namespace tessera::cuda {

/// cap * tanh(x / cap). Of T of 16 bits tanh is 1 - 2 / (1 + exp(2 x)), off by some 2^-23 of 1:
/// less than rounding to T, unlike the hardware's tanh, which is off by 2^-11 of the cap.
template <typename T>
struct SoftCap {
  constexpr explicit SoftCap(float soft_cap) : cap(soft_cap), inverse(1.0F / soft_cap) {}
  float cap, inverse;

  __device__ static float tanh_of(float x) {
    if constexpr (std::is_same_v<T, float>) {
      return tanhf(x);
    } else {
      return 1.0F - __fdividef(2.0F, 1.0F + simt::exp2_approx(2.0F * kLog2E * x));
    }
  }
  __device__ float operator()(float x) const { return cap * tanh_of(x * inverse); }
  /// The derivative at x.
  __device__ float slope(float x) const {
    const float t = tanh_of(x * inverse);
    return fmaf(-t, t, 1.0F);
  }
};

}  // namespace tessera::cuda
