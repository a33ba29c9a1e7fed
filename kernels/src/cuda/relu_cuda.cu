#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// ReLU: y = max(x, 0), dx = dy where y > 0. What is compared is "not above 0", so NaN passes.
// Bytes: forward reads x and writes y, backward reads y and dy and writes dx.

namespace tessera::cuda {
namespace {

/// `value` where `x` is above 0 or NaN, else 0.
__device__ float where_above_zero(float x, float value) { return x <= 0.0F ? 0.0F : value; }

template <typename T>
struct ReluForward {
  const T* x;
  T* y;

  template <int kSize>
  __device__ Pack<T, kSize> load(std::int64_t i) const {
    return load_pack<kSize>(x + i);
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Pack<T, kSize> group) const {
#pragma unroll
    for (T& value : group.v) {
      const float x_value = simt::to_float(value);
      value = simt::from_float<T>(where_above_zero(x_value, x_value));
    }
    store_pack(y + i, group);
  }
};

template <typename T>
struct ReluBackward {
  const T* y;
  const T* dy;
  T* dx;

  template <int kSize>
  struct Group {
    Pack<T, kSize> y, dy;
  };
  template <int kSize>
  __device__ Group<kSize> load(std::int64_t i) const {
    return {load_pack<kSize>(y + i), load_pack<kSize>(dy + i)};
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Group<kSize> group) const {
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      group.dy.v[e] = simt::from_float<T>(
          where_above_zero(simt::to_float(group.y.v[e]), simt::to_float(group.dy.v[e])));
    }
    store_pack(dx + i, group.dy);
  }
};

}  // namespace

void relu_forward(const ReluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("relu_forward", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const ReluForward<T> op{device_data<T>(args.x), device_data<T>(args.y)};
    launch_elementwise<kSize>(op, args.x.numel(), groups_aligned<kSize>(op.x, op.y), stream);
  });
}

void relu_backward(const ReluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("relu_backward", args.y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const ReluBackward<T> op{device_data<T>(args.y), device_data<T>(args.dy),
                             device_data<T>(args.dx)};
    launch_elementwise<kSize>(op, args.y.numel(), groups_aligned<kSize>(op.y, op.dy, op.dx),
                              stream);
  });
}

}  // namespace tessera::cuda
