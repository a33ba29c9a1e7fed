#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "cuda/cuda_stream.h"
#include "simt.h"
#include "tessera/core/error.h"
#include "tessera/core/tensor.h"

// What the launchers of CUDA kernels share. simt::launch reports launch errors by itself.
namespace tessera::cuda {

inline cudaStream_t handle(Stream& stream) { return cuda_stream(stream).handle(); }

/// The elements of a view as the device's type: simt::bf16 for bf16.
template <typename T>
T* device_data(const TensorView& view) {
  return reinterpret_cast<T*>(view.data);
}

template <typename T>
struct ElementType {
  using type = T;
};

/// Calls body(ElementType<T>()) for the T of an fp32 or bf16 tensor; `kernel` is for the error.
template <typename Body>
void with_element_type(const char* kernel, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(ElementType<float>());
    case DType::kBFloat16:
      return body(ElementType<simt::bf16>());
    default:
      fail(ErrorCode::kInvalidArgument, kernel, ": a tensor is ", to_string(dtype),
           ", expected fp32 or bf16");
  }
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
