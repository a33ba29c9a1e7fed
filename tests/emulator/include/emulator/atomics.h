#pragma once

// CUDA's atomics, relaxed as they are there. Not on floating point numbers: the order of their
// additions, so the result, would differ from run to run.

#include <algorithm>
#include <atomic>
#include <type_traits>

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>, "the sum would depend on the order");
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
template <typename T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_or(value, std::memory_order_relaxed);
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).exchange(value, std::memory_order_relaxed);
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  const std::atomic_ref<T> shared(*address);
  T old = shared.load(std::memory_order_relaxed);
  while (!shared.compare_exchange_weak(old, std::max(old, value), std::memory_order_relaxed)) {
  }
  return old;
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  const std::atomic_ref<T> shared(*address);
  T old = shared.load(std::memory_order_relaxed);
  while (!shared.compare_exchange_weak(old, std::min(old, value), std::memory_order_relaxed)) {
  }
  return old;
}
