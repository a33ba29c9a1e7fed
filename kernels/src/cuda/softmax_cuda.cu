#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "elementwise_arguments.h"
#include "simt.h"

// Softmax of each row, y = exp(x - m) / sum, m the largest of the row, and its backward,
// dx = y (dy - sum of dy y). x, y (rows, C) fp32, bf16 or fp16.
//
// One warp per row. Bytes: forward reads x and writes y, backward reads y and dy and writes dx;
// what is read again of a row is in the cache. Sums: a thread's elements in order, then threads as
// warp_sum adds them, in fp32.

namespace tessera::cuda {
namespace {

constexpr int kSoftmaxThreads = 256;  // eight rows
constexpr int kSoftmaxWarp = 32;

/// The row of this warp.
__device__ std::int64_t softmax_row() {
  return static_cast<std::int64_t>(blockIdx.x) * (kSoftmaxThreads / kSoftmaxWarp) +
         static_cast<std::int64_t>(threadIdx.x) / kSoftmaxWarp;
}

template <typename T>
__global__ void __launch_bounds__(kSoftmaxThreads)
    softmax_rows(const T* from, T* to, std::int64_t rows, std::int64_t columns) {
  const std::int64_t row = softmax_row();
  if (row >= rows) return;  // the whole warp
  const std::int64_t lane = threadIdx.x % kSoftmaxWarp;
  const T* const x = from + row * columns;
  T* const y = to + row * columns;
  float largest = -INFINITY;
  for (std::int64_t i = lane; i < columns; i += kSoftmaxWarp) {
    largest = fmaxf(largest, simt::to_float(x[i]));
  }
  largest = simt::warp_reduce(largest, simt::Maximum{});
  float sum = 0.0F;
  for (std::int64_t i = lane; i < columns; i += kSoftmaxWarp) {
    sum += exp2f((simt::to_float(x[i]) - largest) * kLog2E);
  }
  const float inverse = 1.0F / simt::warp_sum(sum);
  for (std::int64_t i = lane; i < columns; i += kSoftmaxWarp) {
    y[i] = simt::from_float<T>(exp2f((simt::to_float(x[i]) - largest) * kLog2E) * inverse);
  }
}

template <typename T>
__global__ void __launch_bounds__(kSoftmaxThreads)
    softmax_gradient_rows(const T* y, const T* dy, T* dx, std::int64_t rows, std::int64_t columns) {
  const std::int64_t row = softmax_row();
  if (row >= rows) return;  // the whole warp
  const std::int64_t begin = row * columns;
  const std::int64_t lane = threadIdx.x % kSoftmaxWarp;
  float sum = 0.0F;
  for (std::int64_t i = begin + lane; i < begin + columns; i += kSoftmaxWarp) {
    sum += simt::to_float(y[i]) * simt::to_float(dy[i]);
  }
  const float dot = simt::warp_sum(sum);
  for (std::int64_t i = begin + lane; i < begin + columns; i += kSoftmaxWarp) {
    dx[i] = simt::from_float<T>(simt::to_float(y[i]) * (simt::to_float(dy[i]) - dot));
  }
}

unsigned softmax_blocks(std::int64_t rows) {
  return blocks_for(rows, kSoftmaxThreads / kSoftmaxWarp);
}

}  // namespace

void softmax_forward(const SoftmaxForwardArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.x.numel() == 0) return;
  with_element_type("softmax_forward", args.x.dtype, [&]<typename T>(ElementType<T>) {
    simt::launch(softmax_rows<T>, softmax_blocks(args.x.shape[0]), kSoftmaxThreads, 0,
                 handle(stream), device_data<const T>(args.x), device_data<T>(args.y),
                 args.x.shape[0], args.x.shape[1]);
  });
}

void softmax_backward(const SoftmaxBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.y.numel() == 0) return;
  with_element_type("softmax_backward", args.y.dtype, [&]<typename T>(ElementType<T>) {
    simt::launch(softmax_gradient_rows<T>, softmax_blocks(args.y.shape[0]), kSoftmaxThreads, 0,
                 handle(stream), device_data<const T>(args.y), device_data<const T>(args.dy),
                 device_data<T>(args.dx), args.y.shape[0], args.y.shape[1]);
  });
}

}  // namespace tessera::cuda
