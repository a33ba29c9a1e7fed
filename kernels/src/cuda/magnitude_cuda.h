#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/elementwise_cuda.h"

// The largest magnitude of a tensor as AmaxArgs has it, which kernels leave that write the tensor,
// so that no pass has to read it. A maximum of words is the same in every order.
namespace tessera::cuda {

struct LargerWord {
  __device__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return a > b ? a : b;
  }
};

template <typename T>
__device__ std::uint32_t magnitude_word(T value) {
  return __float_as_uint(simt::to_float(value)) & 0x7fffffffU;
}

/// The largest word of the values together.
template <typename T, int kSize>
__device__ std::uint32_t largest_word(const T (&values)[kSize]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kSize; ++i) largest = LargerWord{}(largest, magnitude_word(values[i]));
  return largest;
}

/// Makes the word in memory at least that of the block: one atomic. All threads take part.
__device__ inline void raise_by_block(std::uint32_t* amax, std::uint32_t largest) {
  largest = simt::block_reduce(largest, std::uint32_t{0}, LargerWord{});
  if (threadIdx.x == 0 && largest != 0) atomicMax(amax, largest);
}

/// Does the same for a warp.
__device__ inline void raise_by_warp(std::uint32_t* amax, std::uint32_t largest) {
  largest = simt::warp_reduce(largest, LargerWord{});
  if (threadIdx.x % 32 == 0 && largest != 0) atomicMax(amax, largest);
}

/// Zeroes the word before kernels raise it.
void clear_amax(const TensorView& amax, Stream& stream);

/// Kernels that leave a magnitude on their way are made for what products in fp8 read.
template <typename T>
inline constexpr bool kLeavesMagnitude = std::is_same_v<T, simt::bf16>;

/// An Op of elementwise_cuda.h whose `store` returns the largest word of what it has stored.
template <typename Op>
struct WithMagnitude {
  const Op& op;
  std::uint32_t& largest;

  template <int kSize>
  __device__ auto load(std::int64_t i) const {
    return op.template load<kSize>(i);
  }
  template <int kSize, typename Group>
  __device__ void store(std::int64_t i, const Group& group) const {
    largest = LargerWord{}(largest, op.template store<kSize>(i, group));
  }
};

template <int kSize, typename Op>
__global__ void __launch_bounds__(kElementwiseThreads)
    elementwise_with_magnitude(Op op, std::int64_t n, std::uint32_t* amax) {
  std::uint32_t largest = 0;
  run_elementwise<kSize>(WithMagnitude<Op>{op, largest}, n);
  raise_by_block(amax, largest);
}

/// launch_elementwise() of such an Op, which writes `out`, whose magnitude goes to `amax` unless
/// that is empty.
template <int kSize, typename T, typename Op>
void launch_with_magnitude(const Op& op, std::int64_t n, bool grouped, const TensorView& out,
                           const TensorView& amax, Stream& stream) {
  if constexpr (kLeavesMagnitude<T>) {
    if (amax && grouped) {
      clear_amax(amax, stream);
      if (n == 0) return;
      simt::launch(elementwise_with_magnitude<kSize, Op>, dim3(elementwise_blocks<kSize>(n)),
                   dim3(kElementwiseThreads), 0, handle(stream), op, n,
                   device_data<std::uint32_t>(amax));
      return;
    }
  }
  launch_elementwise<kSize>(op, n, grouped, stream);
  if (amax) cuda::amax({.x = out, .amax = amax}, stream);
}

}  // namespace tessera::cuda
