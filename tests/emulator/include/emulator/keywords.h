#pragma once

// CUDA's keywords for g++. There is no __shared__: kernels declare shared memory with SIMT_SHARED,
// so that the emulator can lay it out.

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __grid_constant__

#define threadIdx (::tessera::emulator::current().thread)
#define blockIdx (::tessera::emulator::current().block)
#define blockDim (::tessera::emulator::current().block_dim)
#define gridDim (::tessera::emulator::current().grid_dim)
inline constexpr int warpSize = 32;
