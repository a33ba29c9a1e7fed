#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "layer_norm_arguments.h"
#include "simt.h"

// Layer normalisation over the last dimension C, forward (backward: layer_norm_backward_cuda.cu):
//   s = x [+ residual, rounded to T as it is stored],  mean = sum(s) / C,
//   rstd = 1 / sqrt(sum((s - mean)^2) / C + epsilon),  y = (s - mean) rstd gamma + beta
// x, residual, sum, y (rows, C) T; gamma, beta (C) T; mean, rstd (rows) fp32. Bytes: every tensor
// once.
//
// A warp takes a row of up to 2048 bf16 or 1024 fp32 elements, a block of 256 threads one eight
// times as wide, and keeps it in registers, 16 bytes to an access, between the passes over it.
// Other rows (wider, not aligned, of odd width) are read again for each pass, element by element.
// Sums: a thread's elements in order, then a butterfly over the threads; all in fp32.

namespace tessera::cuda {
namespace {

using simt::Vec16;

constexpr int kThreads = 256;  // eight rows of a warp each, or a wide one
constexpr int kRowsPerBlock = kThreads / 32;

template <typename T>
struct Rows {
  const T* x;
  const T* residual;  // null: none
  T* sum;             // may be x or residual
  const T* gamma;
  const T* beta;
  T* y;
  float* mean;
  float* rstd;
  std::int64_t rows;
  int width;
  float epsilon;
};

/// Sums over the threads of a row, and who they are: a warp, or the block if kWide.
template <bool kWide>
struct RowThreads {
  static constexpr int kCount = kWide ? kThreads : 32;
  __device__ static int index() { return static_cast<int>(threadIdx.x) % kCount; }
  __device__ static std::int64_t row() {
    return std::int64_t{blockIdx.x} * (kThreads / kCount) + threadIdx.x / kCount;
  }
  __device__ static float sum(float value) {
    return kWide ? simt::block_sum(value) : simt::warp_sum(value);
  }
};

/// s of one vector; stores it as `sum` if there is a residual.
template <typename T>
__device__ Vec16<T> load_sum(const Rows<T>& a, std::int64_t offset) {
  Vec16<T> s = simt::load16_streaming(a.x + offset);
  if (a.residual == nullptr) return s;
  const Vec16<T> residual = simt::load16_streaming(a.residual + offset);
#pragma unroll
  for (int j = 0; j < Vec16<T>::kSize; ++j) {
    s.v[j] = simt::from_float<T>(simt::to_float(s.v[j]) + simt::to_float(residual.v[j]));
  }
  simt::store16(a.sum + offset, s);
  return s;
}

template <typename T>
__device__ Vec16<T> normalized(const Vec16<T>& s, float mean, float rstd, const Vec16<T>& gamma,
                               const Vec16<T>& beta) {
  Vec16<T> y;
#pragma unroll
  for (int j = 0; j < Vec16<T>::kSize; ++j) {
    const float h = (simt::to_float(s.v[j]) - mean) * rstd;
    y.v[j] = simt::from_float<T>(fmaf(h, simt::to_float(gamma.v[j]), simt::to_float(beta.v[j])));
  }
  return y;
}

/// Rows of whole aligned vectors, at most kVectors to a thread.
template <bool kWide, int kVectors, typename T>
__global__ void __launch_bounds__(kThreads) normalize_in_registers(const Rows<T> a) {
  using Threads = RowThreads<kWide>;
  constexpr int kSize = Vec16<T>::kSize;
  const std::int64_t row = Threads::row();
  if (row >= a.rows) return;  // all threads of the row
  const std::int64_t offset = row * a.width;
  const auto width = static_cast<float>(a.width);

  Vec16<T> s[kVectors];
  float total = 0.0F;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int i = (k * Threads::kCount + Threads::index()) * kSize;
    if (i < a.width) s[k] = load_sum(a, offset + i);
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if ((k * Threads::kCount + Threads::index()) * kSize >= a.width) continue;
#pragma unroll
    for (int j = 0; j < kSize; ++j) total += simt::to_float(s[k].v[j]);
  }
  const float mean = Threads::sum(total) / width;

  float squares = 0.0F;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if ((k * Threads::kCount + Threads::index()) * kSize >= a.width) continue;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float deviation = simt::to_float(s[k].v[j]) - mean;
      squares = fmaf(deviation, deviation, squares);
    }
  }
  const float rstd = 1.0F / sqrtf(Threads::sum(squares) / width + a.epsilon);

#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int i = (k * Threads::kCount + Threads::index()) * kSize;
    if (i >= a.width) continue;
    simt::store16(a.y + offset + i, normalized(s[k], mean, rstd, simt::load16(a.gamma + i),
                                               simt::load16(a.beta + i)));
  }
  if (Threads::index() != 0) return;
  a.mean[row] = mean;
  a.rstd[row] = rstd;
}

/// Any row; a block for each.
template <typename T>
__global__ void __launch_bounds__(kThreads) normalize_any(const Rows<T> a) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t offset = row * a.width;
  const auto width = static_cast<float>(a.width);
  const auto thread = static_cast<int>(threadIdx.x);
  // Later passes read what this thread has stored: s is rounded.
  const T* const s = (a.residual == nullptr ? a.x : a.sum) + offset;
  float total = 0.0F;
  for (int i = thread; i < a.width; i += kThreads) {
    if (a.residual != nullptr) {
      a.sum[offset + i] = simt::from_float<T>(simt::to_float(a.x[offset + i]) +
                                              simt::to_float(a.residual[offset + i]));
    }
    total += simt::to_float(s[i]);
  }
  const float mean = simt::block_sum(total) / width;
  float squares = 0.0F;
  for (int i = thread; i < a.width; i += kThreads) {
    const float deviation = simt::to_float(s[i]) - mean;
    squares = fmaf(deviation, deviation, squares);
  }
  const float rstd = 1.0F / sqrtf(simt::block_sum(squares) / width + a.epsilon);
  for (int i = thread; i < a.width; i += kThreads) {
    const float h = (simt::to_float(s[i]) - mean) * rstd;
    a.y[offset + i] =
        simt::from_float<T>(fmaf(h, simt::to_float(a.gamma[i]), simt::to_float(a.beta[i])));
  }
  if (thread != 0) return;
  a.mean[row] = mean;
  a.rstd[row] = rstd;
}

template <bool kWide, typename T>
void launch_in_registers(const Rows<T>& a, cudaStream_t stream) {
  const std::int64_t per_vector = std::int64_t{RowThreads<kWide>::kCount} * Vec16<T>::kSize;
  const std::int64_t vectors = ceil_div(a.width, per_vector);
  constexpr int kFewest = kWide ? 2 : 1;  // one vector to a thread of a block fits a warp
  const auto kernel = vectors <= 1   ? normalize_in_registers<kWide, kFewest, T>
                      : vectors <= 2 ? normalize_in_registers<kWide, 2, T>
                      : vectors <= 4 ? normalize_in_registers<kWide, 4, T>
                                     : normalize_in_registers<kWide, 8, T>;
  simt::launch(kernel, blocks_for(a.rows, kWide ? 1 : kRowsPerBlock), kThreads, 0, stream, a);
}

template <typename T>
void forward(const Rows<T>& a, cudaStream_t stream) {
  constexpr int kMostVectors = 8;
  constexpr int kNarrow = 32 * Vec16<T>::kSize * kMostVectors;
  bool aligned = a.width % Vec16<T>::kSize == 0;
  for (const void* p : {static_cast<const void*>(a.x), static_cast<const void*>(a.residual),
                        static_cast<const void*>(a.sum), static_cast<const void*>(a.gamma),
                        static_cast<const void*>(a.beta), static_cast<const void*>(a.y)}) {
    aligned = aligned && is_aligned(p, 16);
  }
  if (aligned && a.width <= kNarrow) {
    launch_in_registers<false>(a, stream);
  } else if (aligned && a.width <= kRowsPerBlock * kNarrow) {
    launch_in_registers<true>(a, stream);
  } else {
    simt::launch(normalize_any<T>, blocks_for(a.rows, 1), kThreads, 0, stream, a);
  }
}

}  // namespace

void layer_norm_forward(const LayerNormForwardArgs& args, Stream& stream) {
  const LayerNormSizes sizes = check_layer_norm(args);
  if (sizes.rows == 0) return;
  with_element_type("layer_norm", args.x.dtype, [&]<typename T>(ElementType<T>) {
    forward(Rows<T>{.x = device_data<const T>(args.x),
                    .residual = device_data<const T>(args.residual),
                    .sum = device_data<T>(args.sum),
                    .gamma = device_data<const T>(args.gamma),
                    .beta = device_data<const T>(args.beta),
                    .y = device_data<T>(args.y),
                    .mean = args.mean.as<float>(),
                    .rstd = args.rstd.as<float>(),
                    .rows = sizes.rows,
                    .width = static_cast<int>(sizes.width),
                    .epsilon = args.epsilon},
            handle(stream));
  });
}

}  // namespace tessera::cuda
