#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/magnitude_cuda.h"
#include "layer_norm_arguments.h"
#include "simt.h"

// Layer normalisation over the last dimension C, forward (backward: layer_norm_backward_cuda.cu):
//   s = x [+ residual, rounded to T as it is stored],  mean = sum(s) / C,
//   rstd = 1 / sqrt(sum((s - mean)^2) / C + epsilon),  y = (s - mean) rstd gamma + beta
// An RMS norm has neither mean nor beta: they count as 0. gamma is what is stored + gamma_offset.
// x, residual, sum, y (rows, C) T; gamma, beta (C) T; mean, rstd (rows) fp32. Bytes: every tensor
// once.
//
// A warp takes a row of up to 2048 elements of 16 bits or 1024 of fp32, a block of 256 threads one
// eight times as wide, and keeps it in registers, 16 bytes to an access, between the passes over
// it; rows of bf16 then leave the largest magnitude of y on their way. Other rows (wider, not
// aligned, of odd width) are read again for each pass, element by element. Sums: a thread's
// elements in order, then a butterfly over the threads; all in fp32.

namespace tessera::cuda {
namespace {

using simt::Packed16;
using simt::Vec16;

constexpr int kNormThreads = 256;  // eight rows of a warp each, or a wide one
constexpr int kRowsPerBlock = kNormThreads / 32;

template <typename T>
struct NormRows {
  const T* x;
  const T* residual;  // null: none
  T* sum;             // may be x or residual
  const T* gamma;
  const T* beta;  // null in an RMS norm, as mean
  T* y;
  float* mean;
  float* rstd;
  std::int64_t rows;
  int width;
  float epsilon, gamma_offset;
  std::uint32_t* amax;  // of y; see kMagnitude
};

/// The threads of a row, a warp or the block if kWide, and what they do together.
template <bool kWide>
struct RowThreads {
  static constexpr int kCount = kWide ? kNormThreads : 32;
  __device__ static int index() { return static_cast<int>(threadIdx.x) % kCount; }
  __device__ static std::int64_t row() {
    return std::int64_t{blockIdx.x} * (kNormThreads / kCount) + threadIdx.x / kCount;
  }
  __device__ static float sum(float value) {
    return kWide ? simt::block_sum(value) : simt::warp_sum(value);
  }
  __device__ static void raise(std::uint32_t* amax, std::uint32_t largest) {
    if constexpr (kWide) {
      raise_by_block(amax, largest);
    } else {
      raise_by_warp(amax, largest);
    }
  }
};

/// Where a thread's vectors of a row lie.
template <bool kWide, typename T>
struct NormColumns {
  int width;
  __device__ int first(int k) const {
    return (k * RowThreads<kWide>::kCount + RowThreads<kWide>::index()) * Vec16<T>::kSize;
  }
  __device__ bool has(int k) const { return first(k) < width; }
};

/// Loads a thread's vectors of the row that begins at `from`, without waiting for them.
template <bool kWide, int kVectors, typename T, typename Load>
__device__ void load_vectors(const T* from, const NormColumns<kWide, T>& columns,
                             Packed16<T> (&to)[kVectors], const Load& load) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (columns.has(k)) to[k] = simt::pack(load(from + columns.first(k)));
  }
}

/// s of the thread's vectors of the row at `offset`; stores them as `sum` if there is a residual.
/// `sum` may be x or the residual, so no load can move before a store of it: all loads come first.
template <bool kWide, int kVectors, typename T>
__device__ void load_sum(const NormRows<T>& a, std::int64_t offset,
                         const NormColumns<kWide, T>& columns, Packed16<T> (&s)[kVectors]) {
  const auto load = [](const T* from) { return simt::load16_streaming(from); };
  load_vectors(a.x + offset, columns, s, load);
  if (a.residual == nullptr) return;
  Packed16<T> residual[kVectors];
  load_vectors(a.residual + offset, columns, residual, load);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!columns.has(k)) continue;
    Vec16<T> sum = simt::unpack(s[k]);
    const Vec16<T> added = simt::unpack(residual[k]);
#pragma unroll
    for (int j = 0; j < Vec16<T>::kSize; ++j) {
      sum.v[j] = simt::from_float<T>(simt::to_float(sum.v[j]) + simt::to_float(added.v[j]));
    }
    simt::store16(a.sum + offset + columns.first(k), sum);
    s[k] = simt::pack(sum);
  }
}

template <typename T>
__device__ Vec16<T> normalized(const Vec16<T>& s, float mean, float rstd, const Vec16<T>& gamma,
                               float gamma_offset, const Vec16<T>& beta) {
  Vec16<T> y;
#pragma unroll
  for (int j = 0; j < Vec16<T>::kSize; ++j) {
    const float h = (simt::to_float(s.v[j]) - mean) * rstd;
    const float factor = simt::to_float(gamma.v[j]) + gamma_offset;
    y.v[j] = simt::from_float<T>(fmaf(h, factor, simt::to_float(beta.v[j])));
  }
  return y;
}

/// Rows of whole aligned vectors, at most kVectors to a thread. kMagnitude: raises `amax`.
template <bool kWide, int kVectors, bool kMagnitude, typename T>
__global__ void __launch_bounds__(kNormThreads, 2) normalize_in_registers(const NormRows<T> a) {
  using Threads = RowThreads<kWide>;
  constexpr int kSize = Vec16<T>::kSize;
  const std::int64_t row = Threads::row();
  if (row >= a.rows) return;  // all threads of the row
  const std::int64_t offset = row * a.width;
  const auto width = static_cast<float>(a.width);

  const NormColumns<kWide, T> columns{a.width};

  Packed16<T> s[kVectors];
  load_sum(a, offset, columns, s);
  float mean = 0.0F;
  if (a.beta != nullptr) {
    float total = 0.0F;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (!columns.has(k)) continue;
      const Vec16<T> values = simt::unpack(s[k]);
#pragma unroll
      for (int j = 0; j < kSize; ++j) total += simt::to_float(values.v[j]);
    }
    mean = Threads::sum(total) / width;
  }

  Packed16<T> gamma[kVectors], beta[kVectors] = {};
  const auto load = [](const T* from) { return simt::load16_constant(from); };
  load_vectors(a.gamma, columns, gamma, load);
  if (a.beta != nullptr) load_vectors(a.beta, columns, beta, load);
  float squares = 0.0F;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!columns.has(k)) continue;
    const Vec16<T> values = simt::unpack(s[k]);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float deviation = simt::to_float(values.v[j]) - mean;
      squares = fmaf(deviation, deviation, squares);
    }
  }
  const float rstd = 1.0F / sqrtf(Threads::sum(squares) / width + a.epsilon);

  std::uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!columns.has(k)) continue;
    const Vec16<T> y = normalized(simt::unpack(s[k]), mean, rstd, simt::unpack(gamma[k]),
                                  a.gamma_offset, simt::unpack(beta[k]));
    simt::store16(a.y + offset + columns.first(k), y);
    if constexpr (kMagnitude) largest = LargerWord{}(largest, largest_word(y.v));
  }
  if constexpr (kMagnitude) Threads::raise(a.amax, largest);
  if (Threads::index() != 0) return;
  if (a.mean != nullptr) a.mean[row] = mean;
  a.rstd[row] = rstd;
}

/// Any row; a block for each.
template <typename T>
__global__ void __launch_bounds__(kNormThreads) normalize_any(const NormRows<T> a) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t offset = row * a.width;
  const auto width = static_cast<float>(a.width);
  const auto thread = static_cast<int>(threadIdx.x);
  // Later passes read what this thread has stored: s is rounded.
  const T* const s = (a.residual == nullptr ? a.x : a.sum) + offset;
  float total = 0.0F;
  for (int i = thread; i < a.width; i += kNormThreads) {
    if (a.residual != nullptr) {
      a.sum[offset + i] = simt::from_float<T>(simt::to_float(a.x[offset + i]) +
                                              simt::to_float(a.residual[offset + i]));
    }
    total += simt::to_float(s[i]);
  }
  const float mean = a.beta == nullptr ? 0.0F : simt::block_sum(total) / width;
  float squares = 0.0F;
  for (int i = thread; i < a.width; i += kNormThreads) {
    const float deviation = simt::to_float(s[i]) - mean;
    squares = fmaf(deviation, deviation, squares);
  }
  const float rstd = 1.0F / sqrtf(simt::block_sum(squares) / width + a.epsilon);
  for (int i = thread; i < a.width; i += kNormThreads) {
    const float h = (simt::to_float(s[i]) - mean) * rstd;
    const float shift = a.beta == nullptr ? 0.0F : simt::to_float(a.beta[i]);
    a.y[offset + i] =
        simt::from_float<T>(fmaf(h, simt::to_float(a.gamma[i]) + a.gamma_offset, shift));
  }
  if (thread != 0) return;
  if (a.mean != nullptr) a.mean[row] = mean;
  a.rstd[row] = rstd;
}

template <bool kWide, bool kMagnitude, typename T>
void launch_in_registers(const NormRows<T>& a, cudaStream_t stream) {
  const std::int64_t per_vector = std::int64_t{RowThreads<kWide>::kCount} * Vec16<T>::kSize;
  const std::int64_t vectors = ceil_div(a.width, per_vector);
  constexpr int kFewest = kWide ? 2 : 1;  // one vector to a thread of a block fits a warp
  const auto kernel = vectors <= 1   ? normalize_in_registers<kWide, kFewest, kMagnitude, T>
                      : vectors <= 2 ? normalize_in_registers<kWide, 2, kMagnitude, T>
                      : vectors <= 4 ? normalize_in_registers<kWide, 4, kMagnitude, T>
                                     : normalize_in_registers<kWide, 8, kMagnitude, T>;
  simt::launch(kernel, blocks_for(a.rows, kWide ? 1 : kRowsPerBlock), kNormThreads, 0, stream, a);
}

enum class NormWay { kWarps, kBlocks, kAny };

template <typename T>
NormWay way_of(const NormRows<T>& a) {
  constexpr int kMostVectors = 8;
  constexpr int kNarrow = 32 * Vec16<T>::kSize * kMostVectors;
  bool aligned = a.width % Vec16<T>::kSize == 0;
  for (const void* p : {static_cast<const void*>(a.x), static_cast<const void*>(a.residual),
                        static_cast<const void*>(a.sum), static_cast<const void*>(a.gamma),
                        static_cast<const void*>(a.beta), static_cast<const void*>(a.y)}) {
    aligned = aligned && is_aligned(p, 16);
  }
  if (!aligned || a.width > kRowsPerBlock * kNarrow) return NormWay::kAny;
  return a.width <= kNarrow ? NormWay::kWarps : NormWay::kBlocks;
}

template <bool kMagnitude, typename T>
void launch_way(NormWay way, const NormRows<T>& a, cudaStream_t stream) {
  if (way == NormWay::kWarps) {
    launch_in_registers<false, kMagnitude>(a, stream);
  } else {
    launch_in_registers<true, kMagnitude>(a, stream);
  }
}

/// Whether the kernel leaves the magnitude of y.
template <typename T>
bool forward(const NormRows<T>& a, const TensorView& amax, Stream& stream) {
  const NormWay way = way_of(a);
  if (way == NormWay::kAny) {
    simt::launch(normalize_any<T>, blocks_for(a.rows, 1), kNormThreads, 0, handle(stream), a);
    return false;
  }
  if constexpr (kLeavesMagnitude<T>) {
    if (amax) {
      clear_amax(amax, stream);
      launch_way<true>(way, a, handle(stream));
      return true;
    }
  }
  launch_way<false>(way, a, handle(stream));
  return false;
}

}  // namespace

void layer_norm_forward(const LayerNormForwardArgs& args, Stream& stream) {
  const LayerNormSizes sizes = check_layer_norm(args);
  bool left = false;
  if (sizes.rows > 0) {
    with_element_type("layer_norm", args.x.dtype, [&]<typename T>(ElementType<T>) {
      left = forward(NormRows<T>{.x = device_data<const T>(args.x),
                                 .residual = device_data<const T>(args.residual),
                                 .sum = device_data<T>(args.sum),
                                 .gamma = device_data<const T>(args.gamma),
                                 .beta = device_data<const T>(args.beta),
                                 .y = device_data<T>(args.y),
                                 .mean = args.mean ? args.mean.as<float>() : nullptr,
                                 .rstd = args.rstd.as<float>(),
                                 .rows = sizes.rows,
                                 .width = static_cast<int>(sizes.width),
                                 .epsilon = args.epsilon,
                                 .gamma_offset = args.gamma_offset,
                                 .amax = device_data<std::uint32_t>(args.amax)},
                     args.amax, stream);
    });
  }
  if (args.amax && !left) amax({.x = args.y, .amax = args.amax}, stream);
}

}  // namespace tessera::cuda
