#include "cuda/cuda_kernels.h"
#include "cuda/magnitude_cuda.h"
#include "cuda/smooth_activations_cuda.h"
#include "cuda/soft_cap_cuda.h"
#include "elementwise_arguments.h"

// GELU, SiLU and tanh (smooth_activations_cuda.h), ReLU, and a soft cap. Each but the last is a
// function of one element and its backward, of what forward has saved and of dy; Forward and
// Backward apply them.
// Bytes: forward reads x and writes y, backward reads what was saved and dy and writes dx. Of bf16
// in groups GELU leaves the largest magnitude on its way.

namespace tessera::cuda {
namespace {

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
  __device__ std::uint32_t store(std::int64_t i, Pack<T, kSize> group) const {
#pragma unroll
    for (T& value : group.v) value = simt::from_float<T>(Function::forward(simt::to_float(value)));
    store_pack(y + i, group);
    return largest_word(group.v);
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
  __device__ std::uint32_t store(std::int64_t i, Group<kSize> group) const {
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      group.dy.v[e] = simt::from_float<T>(
          Function::backward(simt::to_float(group.saved.v[e]), simt::to_float(group.dy.v[e])));
    }
    store_pack(dx + i, group.dy);
    return largest_word(group.dy.v);
  }
};

template <typename T>
struct SoftCapForward {
  const T* x;
  T* y;
  SoftCap<T> capped;

  template <int kSize>
  __device__ Pack<T, kSize> load(std::int64_t i) const {
    return load_pack<kSize>(x + i);
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Pack<T, kSize> group) const {
#pragma unroll
    for (T& value : group.v) value = simt::from_float<T>(capped(simt::to_float(value)));
    store_pack(y + i, group);
  }
};

/// kMagnitude: the largest magnitude of what is written goes to `amax`, unless that is empty.
template <typename Function, bool kMagnitude = false>
void launch_forward(const char* name, const TensorView& x, const TensorView& y, Stream& stream,
                    const TensorView& amax = {}) {
  with_element_type(name, x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const Forward<Function, T> op{device_data<T>(x), device_data<T>(y)};
    const bool grouped = groups_aligned<kSize>(op.x, op.y);
    if constexpr (kMagnitude) {
      launch_with_magnitude<kSize, T>(op, x.numel(), grouped, y, amax, stream);
    } else {
      launch_elementwise<kSize>(op, x.numel(), grouped, stream);
    }
  });
}

template <typename Function, bool kMagnitude = false>
void launch_backward(const char* name, const TensorView& saved, const TensorView& dy,
                     const TensorView& dx, Stream& stream, const TensorView& amax = {}) {
  with_element_type(name, saved.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const Backward<Function, T> op{device_data<T>(saved), device_data<T>(dy), device_data<T>(dx)};
    const bool grouped = groups_aligned<kSize>(op.saved, op.dy, op.dx);
    if constexpr (kMagnitude) {
      launch_with_magnitude<kSize, T>(op, saved.numel(), grouped, dx, amax, stream);
    } else {
      launch_elementwise<kSize>(op, saved.numel(), grouped, stream);
    }
  });
}

}  // namespace

void gelu_forward(const GeluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.form == GeluForm::kErf) {
    launch_forward<ErfGelu, true>("gelu_forward", args.x, args.y, stream, args.amax);
  } else {
    launch_forward<Gelu, true>("gelu_forward", args.x, args.y, stream, args.amax);
  }
}

void gelu_backward(const GeluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.form == GeluForm::kErf) {
    launch_backward<ErfGelu, true>("gelu_backward", args.x, args.dy, args.dx, stream, args.amax);
  } else {
    launch_backward<Gelu, true>("gelu_backward", args.x, args.dy, args.dx, stream, args.amax);
  }
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
  if (args.function == OutputActivation::kTanh) {
    launch_forward<Tanh>("relu_forward", args.x, args.y, stream);
  } else {
    launch_forward<Relu>("relu_forward", args.x, args.y, stream);
  }
}

void relu_backward(const ReluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.function == OutputActivation::kTanh) {
    launch_backward<Tanh>("relu_backward", args.y, args.dy, args.dx, stream);
  } else {
    launch_backward<Relu>("relu_backward", args.y, args.dy, args.dx, stream);
  }
}

void soft_cap(const SoftCapArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("soft_cap", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const SoftCapForward<T> op{device_data<T>(args.x), device_data<T>(args.y),
                               SoftCap<T>(args.cap)};
    launch_elementwise<kSize>(op, args.x.numel(), groups_aligned<kSize>(op.x, op.y), stream);
  });
}

}  // namespace tessera::cuda
