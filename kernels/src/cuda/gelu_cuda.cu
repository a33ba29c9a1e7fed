#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// GELU, tanh form. With u = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh(u)) is the logistic
// function s of 2u, so that y = x s without the cancellation of 1 + tanh(u) for negative x, and
//   dy/dx = s + x s (1 - s) 2u',  2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2).
// Bytes: forward reads x and writes y, backward reads x and dy and writes dx.

namespace tessera::cuda {
namespace {

constexpr float kTwoRootTwoOverPi = 1.59576912F;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715F;
constexpr float kLog2E = 1.44269504F;

/// -2u log2(e): exp(-2u) is 2 to this power.
__device__ float logistic_exponent(float x) {
  return x * fmaf(x * x, -kTwoRootTwoOverPi * kCubic * kLog2E, -kTwoRootTwoOverPi * kLog2E);
}

__device__ float gelu(float x) {
  return __fdividef(x, 1.0F + simt::exp2_approx(logistic_exponent(x)));
}

__device__ float gelu_slope(float x) {
  // Below 2^126, so that s e is a number.
  const float e = simt::exp2_approx(fminf(logistic_exponent(x), 125.0F));
  const float s = __fdividef(1.0F, 1.0F + e);
  const float slope = fmaf(x * x, 3.0F * kTwoRootTwoOverPi * kCubic, kTwoRootTwoOverPi);
  return fmaf(x * slope, s * (s * e), s);
}

template <typename T>
struct GeluForward {
  const T* x;
  T* y;

  template <int kSize>
  __device__ Pack<T, kSize> load(std::int64_t i) const {
    return load_pack<kSize>(x + i);
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Pack<T, kSize> group) const {
#pragma unroll
    for (T& value : group.v) value = simt::from_float<T>(gelu(simt::to_float(value)));
    store_pack(y + i, group);
  }
};

template <typename T>
struct GeluBackward {
  const T* x;
  const T* dy;
  T* dx;

  template <int kSize>
  struct Group {
    Pack<T, kSize> x, dy;
  };
  template <int kSize>
  __device__ Group<kSize> load(std::int64_t i) const {
    return {load_pack<kSize>(x + i), load_pack<kSize>(dy + i)};
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Group<kSize> group) const {
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      group.dy.v[e] = simt::from_float<T>(simt::to_float(group.dy.v[e]) *
                                          gelu_slope(simt::to_float(group.x.v[e])));
    }
    store_pack(dx + i, group.dy);
  }
};

}  // namespace

void gelu_forward(const GeluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("gelu_forward", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const GeluForward<T> op{device_data<T>(args.x), device_data<T>(args.y)};
    launch_elementwise<kSize>(op, args.x.numel(), groups_aligned<kSize>(op.x, op.y), stream);
  });
}

void gelu_backward(const GeluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("gelu_backward", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const GeluBackward<T> op{device_data<T>(args.x), device_data<T>(args.dy),
                             device_data<T>(args.dx)};
    launch_elementwise<kSize>(op, args.x.numel(), groups_aligned<kSize>(op.x, op.dy, op.dx),
                              stream);
  });
}

}  // namespace tessera::cuda
