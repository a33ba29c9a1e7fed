#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "cuda/cuda_stream.h"
#include "simt.h"
#include "tessera/core/error.h"
#include "tessera/core/tensor.h"

// Kernels and their launchers share these. simt::launch reports launch errors by itself.
namespace tessera::cuda {

/// An H100 or H200 has so many: a constant, so that sums do not depend on the GPU.
inline constexpr int kMultiprocessors = 132;

inline constexpr float kLog2E = 1.4426950408889634F;  // exp(x) = 2^(kLog2E x)

inline cudaStream_t handle(Stream& stream) { return cuda_stream(stream).handle(); }

/// The elements of a view as the device's type: simt::bf16 for bf16, simt::fp16 for fp16.
template <typename T>
T* device_data(const TensorView& view) {
  return reinterpret_cast<T*>(view.data);
}

template <typename T>
struct ElementType {
  using type = T;
};

/// Calls body(ElementType<T>()) for the T of an fp32, bf16 or fp16 tensor; `kernel` is for the
/// error.
template <typename Body>
void with_element_type(const char* kernel, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(ElementType<float>());
    case DType::kBFloat16:
      return body(ElementType<simt::bf16>());
    case DType::kFloat16:
      return body(ElementType<simt::fp16>());
    default:
      fail(ErrorCode::kInvalidArgument, kernel, ": a tensor is ", to_string(dtype),
           ", expected fp32, bf16 or fp16");
  }
}

/// Calls it for a tensor of 16 bits.
template <typename Body>
void with_half_type(const char* kernel, DType dtype, const Body& body) {
  with_element_type(kernel, dtype, [&]<typename T>(ElementType<T> type) {
    if constexpr (std::is_same_v<T, float>) {
      fail(ErrorCode::kInvalidArgument, kernel, ": a tensor is fp32, expected bf16 or fp16");
    } else {
      body(type);
    }
  });
}

/// Whether kernels are compiled for tensors of A and B together: no step mixes bf16 and fp16.
template <typename A, typename B>
inline constexpr bool kGoTogether =
    std::is_same_v<A, B> || std::is_same_v<A, float> || std::is_same_v<B, float>;

/// Calls body(ElementType<A>(), ElementType<B>()) for the types of two tensors, which are the same
/// or one of them fp32.
template <typename Body>
void with_element_types(const char* kernel, DType a, DType b, const Body& body) {
  with_element_type(kernel, a, [&]<typename A>(ElementType<A> type_a) {
    with_element_type(kernel, b, [&]<typename B>(ElementType<B> type_b) {
      if constexpr (kGoTogether<A, B>) {
        body(type_a, type_b);
      } else {
        fail(ErrorCode::kInvalidArgument, kernel, ": a tensor is ", to_string(a), " and one ",
             to_string(b), ", which no kernel of a GPU mixes; go by way of fp32");
      }
    });
  });
}

inline bool is_aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Blocks of `per_block` items each for `items` of them, as a one-dimensional grid. No items: 0,
/// and nothing must be launched.
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  const std::int64_t blocks = ceil_div(items, per_block);
  require(blocks <= std::numeric_limits<std::int32_t>::max(), ErrorCode::kInvalidArgument,
          "a CUDA kernel of ", items, " items, ", per_block,
          " to a block, exceeds the largest grid; split the tensor");
  return static_cast<unsigned>(blocks);
}

}  // namespace tessera::cuda
