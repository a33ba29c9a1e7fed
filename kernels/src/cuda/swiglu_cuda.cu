#include "cuda/cuda_kernels.h"
#include "cuda/magnitude_cuda.h"
#include "cuda/smooth_activations_cuda.h"
#include "elementwise_arguments.h"

// y = f(gate) up, f SiLU or GELU (smooth_activations_cuda.h); x is (rows, 2 F), gate before up in
// each row. Backward: d gate = dy up f'(gate), d up = dy f(gate).
// An element of y is one piece of work; its row is a division away.
// Bytes: forward reads x and writes y, backward reads x and dy and writes dx. Of bf16 in groups
// both leave the largest magnitude on their way.

namespace tessera::cuda {
namespace {

/// Where element i of (rows, F) has its gate in (rows, 2 F); its up is F later.
struct Gates {
  std::int64_t width;
  __device__ std::int64_t at(std::int64_t i) const { return i + i / width * width; }
};

template <int kSize, typename T>
struct GatePair {
  Pack<T, kSize> gate, up;
};

template <typename Function, typename T>
struct SwigluForward {
  const T* x;
  T* y;
  Gates gates;

  template <int kSize>
  __device__ GatePair<kSize, T> load(std::int64_t i) const {
    const T* const gate = x + gates.at(i);
    return {load_pack<kSize>(gate), load_pack<kSize>(gate + gates.width)};
  }
  template <int kSize>
  __device__ std::uint32_t store(std::int64_t i, const GatePair<kSize, T>& pair) const {
    Pack<T, kSize> result;
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      const float f = Function::forward(simt::to_float(pair.gate.v[e]));
      result.v[e] = simt::from_float<T>(f * simt::to_float(pair.up.v[e]));
    }
    store_pack(y + i, result);
    return largest_word(result.v);
  }
};

template <typename Function, typename T>
struct SwigluBackward {
  const T* x;
  const T* dy;
  T* dx;
  Gates gates;

  template <int kSize>
  struct Group {
    GatePair<kSize, T> pair;
    Pack<T, kSize> dy;
  };
  template <int kSize>
  __device__ Group<kSize> load(std::int64_t i) const {
    const T* const gate = x + gates.at(i);
    return {{load_pack<kSize>(gate), load_pack<kSize>(gate + gates.width)},
            load_pack<kSize>(dy + i)};
  }
  template <int kSize>
  __device__ std::uint32_t store(std::int64_t i, const Group<kSize>& group) const {
    Pack<T, kSize> d_gate, d_up;
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      const float gate = simt::to_float(group.pair.gate.v[e]);
      const float up = simt::to_float(group.pair.up.v[e]);
      const float gradient = simt::to_float(group.dy.v[e]);
      const Logistic at_gate = Function::at(gate);
      d_gate.v[e] = simt::from_float<T>(gradient * up * at_gate.slope);
      d_up.v[e] = simt::from_float<T>(gradient * (gate * at_gate.s));
    }
    T* const to = dx + gates.at(i);
    store_pack(to, d_gate);
    store_pack(to + gates.width, d_up);
    return LargerWord{}(largest_word(d_gate.v), largest_word(d_up.v));
  }
};

/// Calls `launch(function)` with the function of the gate.
template <typename Launch>
void with_function(GateFunction function, const Launch& launch) {
  if (function == GateFunction::kSilu) {
    launch(Silu{});
  } else {
    launch(Gelu{});
  }
}

}  // namespace

void swiglu_forward(const SwigluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("swiglu_forward", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    with_function(args.function, [&]<typename Function>(Function) {
      const std::int64_t width = args.y.shape[1];
      const SwigluForward<Function, T> op{device_data<T>(args.x), device_data<T>(args.y), {width}};
      const bool grouped = width % kSize == 0 && groups_aligned<kSize>(op.x, op.y);
      launch_with_magnitude<kSize, T>(op, args.y.numel(), grouped, args.y, args.amax, stream);
    });
  });
}

void swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("swiglu_backward", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    with_function(args.function, [&]<typename Function>(Function) {
      const std::int64_t width = args.dy.shape[1];
      const SwigluBackward<Function, T> op{
          device_data<T>(args.x), device_data<T>(args.dy), device_data<T>(args.dx), {width}};
      const bool grouped = width % kSize == 0 && groups_aligned<kSize>(op.x, op.dy, op.dx);
      launch_with_magnitude<kSize, T>(op, args.dy.numel(), grouped, args.dx, args.amax, stream);
    });
  });
}

}  // namespace tessera::cuda
