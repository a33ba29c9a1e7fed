#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/cuda_launch.h"

// How kernels that treat each element by itself go through memory: in groups of neighbours that one
// access moves, 16 bytes of the widest type, neighbouring groups in neighbouring threads.
//
// Such a kernel is an Op with
//   template <int kSize> __device__ auto load(std::int64_t i) const;
//   template <int kSize> __device__ void store(std::int64_t i, const <what load returned>&) const;
// for elements [i, i + kSize). Loads of a thread come before its stores, so that they overlap;
// outputs may alias inputs element for element.
namespace tessera::cuda {

template <typename T, int kSize>
struct alignas(kSize * sizeof(T)) Pack {
  T v[kSize];
};

/// The address must be aligned to kSize elements, which are 16, 8 or 4 bytes or a single element.
template <int kSize, typename T>
__device__ Pack<T, kSize> load_pack(const T* from) {
  Pack<T, kSize> pack;
  if constexpr (sizeof pack == 16) {
    const simt::Vec16<T> words = simt::load16(from);
    memcpy(&pack, &words, sizeof pack);
  } else if constexpr (kSize > 1) {
    pack = *reinterpret_cast<const Pack<T, kSize>*>(from);
  } else {
    pack.v[0] = *from;
  }
  return pack;
}

template <int kSize, typename T>
__device__ void store_pack(T* to, const Pack<T, kSize>& pack) {
  if constexpr (sizeof pack == 16) {
    simt::Vec16<T> words;
    memcpy(&words, &pack, sizeof pack);
    simt::store16(to, words);
  } else if constexpr (kSize > 1) {
    *reinterpret_cast<Pack<T, kSize>*>(to) = pack;
  } else {
    *to = pack.v[0];
  }
}

/// Elements of a group whose widest type is T.
template <typename T>
inline constexpr int kGroupOf = 16 / static_cast<int>(sizeof(T));

/// Eight blocks fill a multiprocessor, and blocks come and go smoothly.
inline constexpr int kElementwiseThreads = 256;
/// Groups per thread: together with the other threads of a multiprocessor enough bytes on their
/// way to cover the latency of memory: 64 KiB and more, but 32 where bf16 becomes fp32.
inline constexpr int kGroupsPerThread = 2;

/// A thread's part of the elements [0, n).
template <int kSize, typename Op>
__device__ void run_elementwise(const Op& op, std::int64_t n) {
  constexpr std::int64_t kStride = std::int64_t{kElementwiseThreads} * kSize;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kGroupsPerThread * kElementwiseThreads +
       static_cast<std::int64_t>(threadIdx.x)) *
      kSize;
  if (first + (kGroupsPerThread - 1) * kStride + kSize <= n) {
    decltype(op.template load<kSize>(first)) groups[kGroupsPerThread];
#pragma unroll
    for (int g = 0; g < kGroupsPerThread; ++g) {
      groups[g] = op.template load<kSize>(first + g * kStride);
    }
#pragma unroll
    for (int g = 0; g < kGroupsPerThread; ++g) {
      op.template store<kSize>(first + g * kStride, groups[g]);
    }
    return;
  }
  for (int g = 0; g < kGroupsPerThread; ++g) {
    const std::int64_t begin = first + g * kStride;
    const std::int64_t end = begin + kSize < n ? begin + kSize : n;
#pragma unroll 1
    for (std::int64_t i = begin; i < end; ++i) {
      op.template store<1>(i, op.template load<1>(i));
    }
  }
}

template <int kSize, typename Op>
__global__ void __launch_bounds__(kElementwiseThreads) elementwise_kernel(Op op, std::int64_t n) {
  run_elementwise<kSize>(op, n);
}

/// Blocks for n elements in groups of kSize.
template <int kSize>
unsigned elementwise_blocks(std::int64_t n) {
  return blocks_for(n, std::int64_t{kElementwiseThreads} * kGroupsPerThread * kSize);
}

/// Runs `op` on elements [0, n): in groups of kSize if `grouped`, else one by one.
template <int kSize, typename Op>
void launch_elementwise(const Op& op, std::int64_t n, bool grouped, Stream& stream) {
  const cudaStream_t queue = handle(stream);
  if (n == 0) return;
  if (grouped) {
    simt::launch(elementwise_kernel<kSize, Op>, dim3(elementwise_blocks<kSize>(n)),
                 dim3(kElementwiseThreads), 0, queue, op, n);
  } else {
    simt::launch(elementwise_kernel<1, Op>, dim3(elementwise_blocks<1>(n)),
                 dim3(kElementwiseThreads), 0, queue, op, n);
  }
}

/// Whether groups of kSize elements of all these tensors can be moved in one access.
template <int kSize, typename... Ts>
bool groups_aligned(const Ts*... tensors) {
  return (is_aligned(tensors, kSize * sizeof(Ts)) && ...);
}

}  // namespace tessera::cuda
