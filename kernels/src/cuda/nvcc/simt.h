#pragma once

// Kernels need more than plain CUDA C++; for nvcc: types, 16-byte accesses, asynchronous copies
// and tensor cores as inline PTX, and launching. tests/emulator/include/simt.h implements the same
// names for g++, so that every kernel also runs on the CPU; the include path chooses. Kernels use
// no other inline assembly and no `__shared__` of their own.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tessera/core/error.h"

namespace tessera::simt {

/// Same bits as tessera::bfloat16 and tessera::float16.
using bf16 = __nv_bfloat16;
using fp16 = __half;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(bf16 value) { return __bfloat162float(value); }
__device__ inline float to_float(fp16 value) { return __half2float(value); }

/// Rounds to nearest, ties to even; NaN stays NaN. What fp16 cannot hold becomes infinite.
template <typename T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline bf16 from_float<bf16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline fp16 from_float<fp16>(float value) {
  return __float2half_rn(value);
}

/// Two numbers of T, bf16 or fp16, in one word, `low` in the lower half: an operand of mma.
template <typename T>
__device__ std::uint32_t pack_pair(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, fp16>) {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&word, &pair, sizeof word);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&word, &pair, sizeof word);
  }
  return word;
}

/// 2^x to about 2 units in the last place; results below 2^-126 are 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <typename T>
struct TypeOf {
  using type = T;
};

/// Static shared memory, uninitialised: SIMT_SHARED(float[32], sums);
#define SIMT_SHARED(Type, name) __shared__ typename ::tessera::simt::TypeOf<Type>::type name

/// The dynamic shared memory of the launch, 128-byte aligned.
template <typename T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char simt_dynamic_shared[];
  return reinterpret_cast<T*>(simt_dynamic_shared);
}

/// 16 bytes that are moved in one access.
template <typename T>
struct alignas(16) Vec16 {
  static constexpr int kSize = 16 / sizeof(T);
  T v[kSize];
};

namespace detail {
template <typename T>
__device__ inline Vec16<T> from_words(uint4 words) {
  Vec16<T> value;
  memcpy(&value, &words, sizeof value);
  return value;
}
template <typename T>
__device__ inline uint4 to_words(const Vec16<T>& value) {
  uint4 words;
  memcpy(&words, &value, sizeof words);
  return words;
}
__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}
}  // namespace detail

/// Global or shared memory, 16-byte aligned.
template <typename T>
__device__ inline Vec16<T> load16(const T* from) {
  return detail::from_words<T>(*reinterpret_cast<const uint4*>(from));
}
template <typename T>
__device__ inline void store16(T* to, const Vec16<T>& value) {
  *reinterpret_cast<uint4*>(to) = detail::to_words(value);
}
/// Global memory that nothing writes while the kernel runs: stores do not hold up such a load.
template <typename T>
__device__ inline Vec16<T> load16_constant(const T* from) {
  return detail::from_words<T>(__ldg(reinterpret_cast<const uint4*>(from)));
}
/// Global memory that is not needed again soon: it leaves the caches first.
template <typename T>
__device__ inline Vec16<T> load16_streaming(const T* from) {
  return detail::from_words<T>(__ldcs(reinterpret_cast<const uint4*>(from)));
}
template <typename T>
__device__ inline void store16_streaming(T* to, const Vec16<T>& value) {
  __stcs(reinterpret_cast<uint4*>(to), detail::to_words(value));
}

/// 16 bytes as memory has them, in four registers. The compiler takes a Vec16 apart where it is
/// loaded, where it must wait for it, and into eight registers if the elements are 16 bits. This is
/// for what is to arrive later, or to be kept.
template <typename T>
struct Packed16 {
  uint4 words;
};
template <typename T>
__device__ inline Packed16<T> pack(const Vec16<T>& value) {
  return {detail::to_words(value)};
}
template <typename T>
__device__ inline Vec16<T> unpack(const Packed16<T>& packed) {
  uint4 words = packed.words;
  // Opaque: not to be done earlier, and not once for several uses, which would keep the result.
  asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
  return detail::from_words<T>(words);
}

/// Copies 16 bytes from global to shared memory, both 16-byte aligned, in the background: they are
/// there, for this thread, after a cp_async_wait that covers the group they were committed to.
__device__ inline void cp_async16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(detail::shared_address(shared)), "l"(global)
               : "memory");
}
/// Makes a group of this thread's copies since the last commit.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
/// Waits until at most kPending of this thread's groups, the latest, are still under way.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row
/// l % 8 of matrix l / 8 (16-byte aligned); it receives elements (l / 4, l % 4 * 2 + {0, 1}) of
/// matrix i in words[i].
__device__ inline void ldmatrix_x4(std::uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(detail::shared_address(row))
               : "memory");
}
/// Loads them with each matrix transposed.
__device__ inline void ldmatrix_x4_trans(std::uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(detail::shared_address(row))
               : "memory");
}

/// D += A B: A (16, 16) and B (16, 8) in T, bf16 or fp16, D (16, 8) in fp32, spread over a warp.
/// With g = lane / 4, t = lane % 4: d holds (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1); a
/// the pairs at (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8); b those down the column from
/// (2t, g) and (2t + 8, g).
template <typename T>
__device__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, fp16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// Throws Error{kInternal} that names `call` and the CUDA error, if there is one.
inline void check_launch(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // one that is not sticky must not be found again
  fail(ErrorCode::kInternal, call, " failed: ", cudaGetErrorName(status), ", ",
       cudaGetErrorString(status));
}

/// Lets a kernel be launched with more than 48 KiB of dynamic shared memory; at most 227 KiB.
template <typename... Parameters>
void allow_dynamic_shared(void (*kernel)(Parameters...), std::size_t bytes) {
  check_launch(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "cudaFuncSetAttribute");
}

/// Enqueues a kernel. Arguments are copied; `dynamic_shared_bytes` is what dynamic_shared points
/// to.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t dynamic_shared_bytes,
            cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = dynamic_shared_bytes;
  config.stream = stream;
  check_launch(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
               "a kernel launch");
}

}  // namespace tessera::simt

#include "cuda/simt_reductions.h"
