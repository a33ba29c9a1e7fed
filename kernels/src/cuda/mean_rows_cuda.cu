#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "elementwise_arguments.h"
#include "simt.h"

// The mean of a sequence's rows, y[b] = sum over l of x[b, l] / L, and its backward,
// dx[b, l] = dy[b] / L. x (B, L, C), y (B, C) fp32, bf16 or fp16.
//
// A thread has a column of a sequence and adds its rows in order, in fp32; neighbours have
// neighbouring columns. Bytes: forward reads x and writes y, backward reads dy and writes dx.

namespace tessera::cuda {
namespace {

constexpr int kMeanThreads = 128;  // small: B C columns are few

template <typename T>
__global__ void __launch_bounds__(kMeanThreads)
    mean_of_rows(const T* x, T* y, std::int64_t count, std::int64_t length, std::int64_t columns) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMeanThreads + threadIdx.x;
  if (i >= count) return;
  const T* from = x + i / columns * length * columns + i % columns;
  float sum = 0.0F;
#pragma unroll 4
  for (std::int64_t l = 0; l < length; ++l) sum += simt::to_float(from[l * columns]);
  y[i] = simt::from_float<T>(__fdiv_rn(sum, static_cast<float>(length)));
}

template <typename T>
__global__ void __launch_bounds__(kMeanThreads)
    spread_over_rows(const T* dy, T* dx, std::int64_t count, std::int64_t length,
                     std::int64_t columns) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMeanThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t from = i / (length * columns) * columns + i % columns;
  dx[i] = simt::from_float<T>(__fdiv_rn(simt::to_float(dy[from]), static_cast<float>(length)));
}

}  // namespace

void mean_rows_forward(const MeanRowsForwardArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t count = args.y.numel();
  if (count == 0) return;
  with_element_type("mean_rows_forward", args.x.dtype, [&]<typename T>(ElementType<T>) {
    simt::launch(mean_of_rows<T>, blocks_for(count, kMeanThreads), kMeanThreads, 0, handle(stream),
                 device_data<const T>(args.x), device_data<T>(args.y), count, args.x.shape[1],
                 args.x.shape[2]);
  });
}

void mean_rows_backward(const MeanRowsBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t count = args.dx.numel();
  if (count == 0) return;
  with_element_type("mean_rows_backward", args.dx.dtype, [&]<typename T>(ElementType<T>) {
    simt::launch(spread_over_rows<T>, blocks_for(count, kMeanThreads), kMeanThreads, 0,
                 handle(stream), device_data<const T>(args.dy), device_data<T>(args.dx), count,
                 args.dx.shape[1], args.dx.shape[2]);
  });
}

}  // namespace tessera::cuda
