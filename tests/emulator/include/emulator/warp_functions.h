#pragma once

// CUDA's barriers, shuffles and votes. Only the barriers order memory: a shuffle does not, which
// ThreadSanitizer builds hold kernels to.

#include <cstdint>
#include <source_location>
#include <type_traits>

#include "emulator/hooks.h"

#define TESSERA_HERE std::source_location where = std::source_location::current()

inline void __syncthreads(TESSERA_HERE) {
  tessera::emulator::block_barrier(tessera::emulator::Vote::kNone, false, where);
}
inline int __syncthreads_or(int predicate, TESSERA_HERE) {
  return tessera::emulator::block_barrier(tessera::emulator::Vote::kAny, predicate != 0, where);
}
inline int __syncthreads_and(int predicate, TESSERA_HERE) {
  return tessera::emulator::block_barrier(tessera::emulator::Vote::kAll, predicate != 0, where);
}
inline int __syncthreads_count(int predicate, TESSERA_HERE) {
  return tessera::emulator::block_barrier(tessera::emulator::Vote::kCount, predicate != 0, where);
}
inline void __syncwarp(std::uint32_t mask = 0xffffffffU, TESSERA_HERE) {
  tessera::emulator::warp_barrier(mask, where);
}

// `width` splits the warp into segments, a power of two; a lane outside of its own is not read.
template <typename T>
T __shfl_sync(std::uint32_t mask, T value, int source, int width = 32, TESSERA_HERE) {
  const unsigned lane = tessera::emulator::current().lane;
  const unsigned last = static_cast<unsigned>(width) - 1;
  tessera::emulator::shuffle(mask, &value, sizeof value,
                             (lane & ~last) | (static_cast<unsigned>(source) & last), where);
  return value;
}
template <typename T>
T __shfl_xor_sync(std::uint32_t mask, T value, int bits, int width = 32, TESSERA_HERE) {
  const unsigned lane = tessera::emulator::current().lane;
  const unsigned segment = ~(static_cast<unsigned>(width) - 1);
  const unsigned source = lane ^ static_cast<unsigned>(bits);
  tessera::emulator::shuffle(mask, &value, sizeof value,
                             (source & segment) > (lane & segment) ? lane : source, where);
  return value;
}
template <typename T>
T __shfl_down_sync(std::uint32_t mask, T value, unsigned delta, int width = 32, TESSERA_HERE) {
  const unsigned lane = tessera::emulator::current().lane;
  const unsigned segment = ~(static_cast<unsigned>(width) - 1);
  const unsigned source = lane + delta;
  tessera::emulator::shuffle(mask, &value, sizeof value,
                             (source & segment) != (lane & segment) ? lane : source, where);
  return value;
}
template <typename T>
T __shfl_up_sync(std::uint32_t mask, T value, unsigned delta, int width = 32, TESSERA_HERE) {
  const unsigned lane = tessera::emulator::current().lane;
  const unsigned segment = ~(static_cast<unsigned>(width) - 1);
  const bool inside = delta <= lane - (lane & segment);
  tessera::emulator::shuffle(mask, &value, sizeof value, inside ? lane - delta : lane, where);
  return value;
}

inline std::uint32_t __ballot_sync(std::uint32_t mask, int predicate, TESSERA_HERE) {
  return tessera::emulator::ballot(mask, predicate != 0, where);
}
inline int __any_sync(std::uint32_t mask, int predicate, TESSERA_HERE) {
  return tessera::emulator::ballot(mask, predicate != 0, where) != 0;
}
inline int __all_sync(std::uint32_t mask, int predicate, TESSERA_HERE) {
  return tessera::emulator::ballot(mask, predicate == 0, where) == 0;
}

#undef TESSERA_HERE
