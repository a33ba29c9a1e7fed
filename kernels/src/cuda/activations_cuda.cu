#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// GELU, SiLU and ReLU. Each is a function of one element and its backward, of what forward has
// saved and of dy; Forward and Backward apply them.
// Bytes: forward reads x and writes y, backward reads what was saved and dy and writes dx.

namespace tessera::cuda {
namespace {

/// x times the logistic function s(z) = 1 / (1 + exp(-z)); `exponent`: -z log2(e).
__device__ float times_logistic(float x, float exponent) {
  return __fdividef(x, 1.0F + simt::exp2_approx(exponent));
}

/// s + x s (1 - s) z', the derivative of that; `x_slope`: x z'.
__device__ float logistic_slope(float x_slope, float exponent) {
  // Below 2^126, so that s e is a number.
  const float e = simt::exp2_approx(fminf(exponent, 125.0F));
  const float s = __fdividef(1.0F, 1.0F + e);
  return fmaf(x_slope, s * (s * e), s);
}

/// The tanh form. With u = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh(u)) is the logistic
/// function s of z = 2u, so that y = x s without the cancellation of 1 + tanh(u) for negative x,
/// and
///   dy/dx = s + x s (1 - s) z',  z' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2).
struct Gelu {
  static constexpr float kTwoRootTwoOverPi = 1.59576912F;  // 2 sqrt(2/pi)
  static constexpr float kCubic = 0.044715F;

  __device__ static float exponent(float x) {
    return x * fmaf(x * x, -kTwoRootTwoOverPi * kCubic * kLog2E, -kTwoRootTwoOverPi * kLog2E);
  }
  __device__ static float forward(float x) { return times_logistic(x, exponent(x)); }
  __device__ static float backward(float x, float dy) {
    const float slope = fmaf(x * x, 3.0F * kTwoRootTwoOverPi * kCubic, kTwoRootTwoOverPi);
    return dy * logistic_slope(x * slope, exponent(x));
  }
};

/// y = x s(x).
struct Silu {
  __device__ static float forward(float x) { return times_logistic(x, -kLog2E * x); }
  __device__ static float backward(float x, float dy) {
    return dy * logistic_slope(x, -kLog2E * x);
  }
};

/// y = max(x, 0), dx = dy where y > 0. What is compared is "not above 0", so NaN passes.
struct Relu {
  __device__ static float forward(float x) { return x <= 0.0F ? 0.0F : x; }
  __device__ static float backward(float y, float dy) { return y <= 0.0F ? 0.0F : dy; }
};

template <typename Function, typename T>
struct Forward {
  const T* x;
  T* y;

  template <int kSize>
  __device__ Pack<T, kSize> load(std::int64_t i) const {
    return load_pack<kSize>(x + i);
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Pack<T, kSize> group) const {
#pragma unroll
    for (T& value : group.v) value = simt::from_float<T>(Function::forward(simt::to_float(value)));
    store_pack(y + i, group);
  }
};

template <typename Function, typename T>
struct Backward {
  const T* saved;
  const T* dy;
  T* dx;

  template <int kSize>
  struct Group {
    Pack<T, kSize> saved, dy;
  };
  template <int kSize>
  __device__ Group<kSize> load(std::int64_t i) const {
    return {load_pack<kSize>(saved + i), load_pack<kSize>(dy + i)};
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Group<kSize> group) const {
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      group.dy.v[e] = simt::from_float<T>(
          Function::backward(simt::to_float(group.saved.v[e]), simt::to_float(group.dy.v[e])));
    }
    store_pack(dx + i, group.dy);
  }
};

template <typename Function>
void launch_forward(const char* name, const TensorView& x, const TensorView& y, Stream& stream) {
  with_element_type(name, x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const Forward<Function, T> op{device_data<T>(x), device_data<T>(y)};
    launch_elementwise<kSize>(op, x.numel(), groups_aligned<kSize>(op.x, op.y), stream);
  });
}

template <typename Function>
void launch_backward(const char* name, const TensorView& saved, const TensorView& dy,
                     const TensorView& dx, Stream& stream) {
  with_element_type(name, saved.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const Backward<Function, T> op{device_data<T>(saved), device_data<T>(dy), device_data<T>(dx)};
    launch_elementwise<kSize>(op, saved.numel(), groups_aligned<kSize>(op.saved, op.dy, op.dx),
                              stream);
  });
}

}  // namespace

void gelu_forward(const GeluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  launch_forward<Gelu>("gelu_forward", args.x, args.y, stream);
}

void gelu_backward(const GeluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  launch_backward<Gelu>("gelu_backward", args.x, args.dy, args.dx, stream);
}

void silu_forward(const SiluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  launch_forward<Silu>("silu_forward", args.x, args.y, stream);
}

void silu_backward(const SiluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  launch_backward<Silu>("silu_backward", args.x, args.dy, args.dx, stream);
}

void relu_forward(const ReluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  launch_forward<Relu>("relu_forward", args.x, args.y, stream);
}

void relu_backward(const ReluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  launch_backward<Relu>("relu_backward", args.y, args.dy, args.dx, stream);
}

}  // namespace tessera::cuda
