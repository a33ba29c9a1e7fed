#pragma once

// kernels/src/cuda/nvcc/simt.h for g++: the same names, run by the emulator (tests/emulator). Here
// a CUDA thread is a fiber, a warp's exchange a rendezvous, and what a GPU leaves to chance is
// chosen so that mistakes show. planted_bugs_test.cpp lists what each kind of build finds.

#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "emulator/arithmetic.h"
#include "emulator/atomics.h"
#include "emulator/hooks.h"
#include "emulator/keywords.h"
#include "emulator/warp_functions.h"
#include "tessera/core/dtype.h"
#include "tessera/core/error.h"

namespace tessera::simt {

/// Same bits as tessera::bfloat16, but as uninitialised by default as CUDA's type.
struct bf16 {
  std::uint16_t bits;
};
static_assert(sizeof(bf16) == 2 && std::is_trivial_v<bf16>);

/// And of tessera::float16.
struct fp16 {
  std::uint16_t bits;
};
static_assert(sizeof(fp16) == 2 && std::is_trivial_v<fp16>);

inline float to_float(float value) { return value; }
inline float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
inline float to_float(fp16 value) {
  if ((value.bits & 0x7fffU) > 0x7c00U) return std::bit_cast<float>(0x7fffffffU);
  return static_cast<float>(std::bit_cast<float16>(value));
}

/// Rounds to nearest, ties to even; NaN becomes the NaN that a GPU makes, as it does above.
template <typename T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline bf16 from_float<bf16>(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  if ((word & 0x7fffffffU) > 0x7f800000U) return {0x7fff};
  return {static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16)};
}

template <>
inline fp16 from_float<fp16>(float value) {
  if (value != value) return {0x7fff};
  return std::bit_cast<fp16>(float16(value));
}

template <typename T>
std::uint32_t pack_pair(float low, float high) {
  return from_float<T>(low).bits | static_cast<std::uint32_t>(from_float<T>(high).bits) << 16;
}

inline float exp2_approx(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126F ? 0.0F : y;
}

template <typename T>
struct TypeOf {
  using type = T;
};

/// The address of the key tells shared objects apart: one per place and instantiation, as in CUDA.
#define SIMT_SHARED(Type, name)                                                  \
  static char name##_key;                                                        \
  typename ::tessera::simt::TypeOf<Type>::type& name =                           \
      *static_cast<typename ::tessera::simt::TypeOf<Type>::type*>(               \
          ::tessera::emulator::static_shared(                                    \
              &name##_key, sizeof(typename ::tessera::simt::TypeOf<Type>::type), \
              alignof(typename ::tessera::simt::TypeOf<Type>::type)))

template <typename T>
T* dynamic_shared(std::source_location where = std::source_location::current()) {
  return static_cast<T*>(emulator::dynamic_shared(where));
}

template <typename T>
struct alignas(16) Vec16 {
  static constexpr int kSize = 16 / sizeof(T);
  T v[kSize];
};

template <typename T>
Vec16<T> load16(const T* from, std::source_location where = std::source_location::current()) {
  emulator::check_aligned16(from, where);
  return *reinterpret_cast<const Vec16<T>*>(from);
}
template <typename T>
void store16(T* to, const std::type_identity_t<Vec16<T>>& value,
             std::source_location where = std::source_location::current()) {
  emulator::check_aligned16(to, where);
  *reinterpret_cast<Vec16<T>*>(to) = value;
}
template <typename T>
Vec16<T> load16_constant(const T* from,
                         std::source_location where = std::source_location::current()) {
  return load16(from, where);
}
template <typename T>
Vec16<T> load16_streaming(const T* from,
                          std::source_location where = std::source_location::current()) {
  return load16(from, where);
}
template <typename T>
void store16_streaming(T* to, const std::type_identity_t<Vec16<T>>& value,
                       std::source_location where = std::source_location::current()) {
  store16(to, value, where);
}

template <typename T>
struct Packed16 {
  Vec16<T> value;
};
template <typename T>
Packed16<T> pack(const Vec16<T>& value) {
  return {value};
}
template <typename T>
Vec16<T> unpack(const Packed16<T>& packed) {
  return packed.value;
}

inline void cp_async16(void* shared, const void* global,
                       std::source_location where = std::source_location::current()) {
  emulator::async_copy16(shared, global, where);
}
inline void cp_async_commit() { emulator::async_copy_commit(); }
template <int kPending>
void cp_async_wait() {
  emulator::async_copy_wait(kPending);
}

inline void ldmatrix_x4(std::uint32_t (&words)[4], const void* row,
                        std::source_location where = std::source_location::current()) {
  emulator::load_matrices(words, row, false, where);
}
inline void ldmatrix_x4_trans(std::uint32_t (&words)[4], const void* row,
                              std::source_location where = std::source_location::current()) {
  emulator::load_matrices(words, row, true, where);
}
template <typename T>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  std::source_location where = std::source_location::current()) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, fp16>);
  emulator::multiply_matrices(d, a, b, std::is_same_v<T, fp16>, where);
}

/// Throws Error{kInternal} that names `call` and the CUDA error, if there is one.
inline void check_launch(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  fail(ErrorCode::kInternal, call, " failed: ", cudaGetErrorName(status), ", ",
       cudaGetErrorString(status));
}

template <typename... Parameters>
void allow_dynamic_shared(void (*kernel)(Parameters...), std::size_t bytes) {
  check_launch(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "cudaFuncSetAttribute");
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t dynamic_shared_bytes,
            cudaStream_t stream, const Arguments&... arguments) {
  // The parameters are copied to every thread: a kernel may change its own.
  auto body = [kernel, copies = std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)] {
    std::apply(kernel, copies);
  };
  check_launch(emulator::enqueue({.kernel = reinterpret_cast<const void*>(kernel),
                                  .grid = grid,
                                  .block = block,
                                  .dynamic_shared_bytes = dynamic_shared_bytes,
                                  .body = std::move(body)},
                                 stream),
               "a kernel launch");
}

}  // namespace tessera::simt

#include "cuda/simt_reductions.h"
