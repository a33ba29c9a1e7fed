#pragma once

// Reductions over a warp and over a block, for both implementations of simt.h, which include this
// file. Every order is fixed by the number of threads alone: the same inputs give the same bits.

namespace tessera::simt {

/// Xor butterfly: log2(32) exchanges, after which every lane holds the result. All 32 lanes of the
/// warp take part.
template <typename T, typename Combine>
__device__ inline T warp_reduce(T value, Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  return value;
}

/// Every warp by a butterfly, then the warps' results by another, in every warp at once: all
/// threads get the result. Any block of whole warps, all of whose threads take part.
template <typename T, typename Combine>
__device__ inline T block_reduce(T value, T identity, Combine combine) {
  SIMT_SHARED(T[32], of_warp);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned lane = thread % 32;
  const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32;
  value = warp_reduce(value, combine);
  __syncthreads();  // other warps may still be reading the results of an earlier call
  if (lane == 0) of_warp[thread / 32] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? of_warp[lane] : identity, combine);
}

struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
/// The larger number; NaN only if both are.
struct Maximum {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

__device__ inline float warp_sum(float value) { return warp_reduce(value, Plus{}); }
__device__ inline double warp_sum(double value) { return warp_reduce(value, Plus{}); }

__device__ inline float block_sum(float value) { return block_reduce(value, 0.0F, Plus{}); }
__device__ inline double block_sum(double value) { return block_reduce(value, 0.0, Plus{}); }
__device__ inline float block_max(float value) { return block_reduce(value, -INFINITY, Maximum{}); }

}  // namespace tessera::simt
