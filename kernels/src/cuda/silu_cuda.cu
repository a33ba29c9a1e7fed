#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// SiLU. With the logistic function s(x) = 1 / (1 + exp(-x)), y = x s and dy/dx = s + x s (1 - s).
// Bytes: forward reads x and writes y, backward reads x and dy and writes dx.

namespace tessera::cuda {
namespace {

constexpr float kLog2E = 1.44269504F;

__device__ float silu(float x) { return __fdividef(x, 1.0F + simt::exp2_approx(-kLog2E * x)); }

__device__ float silu_slope(float x) {
  // Below 2^126, so that s e is a number.
  const float e = simt::exp2_approx(fminf(-kLog2E * x, 125.0F));
  const float s = __fdividef(1.0F, 1.0F + e);
  return fmaf(x, s * (s * e), s);
}

template <typename T>
struct SiluForward {
  const T* x;
  T* y;

  template <int kSize>
  __device__ Pack<T, kSize> load(std::int64_t i) const {
    return load_pack<kSize>(x + i);
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Pack<T, kSize> group) const {
#pragma unroll
    for (T& value : group.v) value = simt::from_float<T>(silu(simt::to_float(value)));
    store_pack(y + i, group);
  }
};

template <typename T>
struct SiluBackward {
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
                                          silu_slope(simt::to_float(group.x.v[e])));
    }
    store_pack(dx + i, group.dy);
  }
};

}  // namespace

void silu_forward(const SiluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("silu_forward", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const SiluForward<T> op{device_data<T>(args.x), device_data<T>(args.y)};
    launch_elementwise<kSize>(op, args.x.numel(), groups_aligned<kSize>(op.x, op.y), stream);
  });
}

void silu_backward(const SiluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("silu_backward", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const SiluBackward<T> op{device_data<T>(args.x), device_data<T>(args.dy),
                             device_data<T>(args.dx)};
    launch_elementwise<kSize>(op, args.x.numel(), groups_aligned<kSize>(op.x, op.dy, op.dx),
                              stream);
  });
}

}  // namespace tessera::cuda
