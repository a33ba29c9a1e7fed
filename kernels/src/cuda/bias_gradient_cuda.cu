#include <algorithm>

#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// db[j] [+]= sum over i of dy[i][j], dy (M, N).
//
// Two launches. In the first a block takes a tile of columns and a range of rows: each warp adds
// every eighth row, from first to last, then the warps' sums are added in order, and the result
// goes to a row of partial sums (ranges, N) in scratch. In the second a block adds the partial sums
// of 32 columns: each warp those of some neighbouring ranges, then the warps' in order. How rows
// are cut depends on M and N alone. Bytes: dy once, and at most an eighth as much again for the
// partial sums (which stay in the L2 cache).

namespace tessera::cuda {
namespace {

constexpr int kBiasWarps = 8;
constexpr int kBiasThreads = 32 * kBiasWarps;
/// Rows per warp whose loads are on their way together.
constexpr int kBiasRowsAhead = 4;
/// Fewest rows of a range: at 32, partial sums have an eighth of the bytes of bf16 rows at most.
constexpr std::int64_t kMinRows = kBiasWarps * kBiasRowsAhead;
/// Enough to fill large GPUs, few enough that the second launch is short.
constexpr std::int64_t kTargetBlocks = 1024;
/// Of the second launch: with so many warps even 1024 ranges are 32 loads one after another.
constexpr int kCombineWarps = 32;

/// sums += rows first, first + kBiasWarps, ... of [first, end) of a column group.
template <int kSize, typename T>
__device__ void add_rows(const T* column, std::int64_t first, std::int64_t end, std::int64_t n,
                         float (&sums)[kSize]) {
  std::int64_t row = first;
  for (; row + (kBiasRowsAhead - 1) * kBiasWarps < end; row += kBiasRowsAhead * kBiasWarps) {
    Pack<T, kSize> rows[kBiasRowsAhead];
#pragma unroll
    for (int r = 0; r < kBiasRowsAhead; ++r)
      rows[r] = load_pack<kSize>(column + (row + r * kBiasWarps) * n);
#pragma unroll
    for (int r = 0; r < kBiasRowsAhead; ++r) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) sums[e] += simt::to_float(rows[r].v[e]);
    }
  }
  for (; row < end; row += kBiasWarps) {
    const auto values = load_pack<kSize>(column + row * n);
#pragma unroll
    for (int e = 0; e < kSize; ++e) sums[e] += simt::to_float(values.v[e]);
  }
}

/// partials (gridDim.y, n): row y sums rows [y range, (y + 1) range) of dy.
template <int kSize, typename T>
__global__ void __launch_bounds__(kBiasThreads)
    sum_rows_kernel(const T* dy, float* partials, std::int64_t m, std::int64_t n,
                    std::int64_t range) {
  constexpr int kColumns = 32 * kSize;  // of a tile
  SIMT_SHARED(float[kBiasWarps * kColumns], of_warp);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * kColumns;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * range;
  const std::int64_t end = begin + range < m ? begin + range : m;
  float sums[kSize] = {};
  const std::int64_t column = tile + lane * kSize;
  if (column < n) add_rows<kSize>(dy + column, begin + warp, end, n, sums);  // n: whole groups
#pragma unroll
  for (int e = 0; e < kSize; ++e) of_warp[warp * kColumns + lane * kSize + e] = sums[e];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < kColumns && tile + c < n; c += kBiasThreads) {
    float sum = of_warp[c];
    for (int w = 1; w < kBiasWarps; ++w) sum += of_warp[w * kColumns + c];
    partials[static_cast<std::int64_t>(blockIdx.y) * n + tile + c] = sum;
  }
}

template <typename D>
__global__ void __launch_bounds__(32 * kCombineWarps)
    combine_kernel(const float* partials, std::int64_t ranges, std::int64_t n, D* db,
                   bool accumulate) {
  SIMT_SHARED(float[kCombineWarps][32], of_warp);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  const std::int64_t per_warp = (ranges + kCombineWarps - 1) / kCombineWarps;
  const std::int64_t begin = warp * per_warp;
  const std::int64_t end = begin + per_warp < ranges ? begin + per_warp : ranges;
  float sum = 0.0F;
  if (column < n) {
#pragma unroll 8
    for (std::int64_t r = begin; r < end; ++r) sum += partials[r * n + column];
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= n) return;
  sum = accumulate ? simt::to_float(db[column]) : 0.0F;
  for (int w = 0; w < kCombineWarps; ++w) sum += of_warp[w][lane];
  db[column] = simt::from_float<D>(sum);
}

template <int kSize, typename T>
void launch_sums(const TensorView& dy, float* partials, std::int64_t ranges, std::int64_t range,
                 cudaStream_t queue) {
  const std::int64_t n = dy.shape[1];
  simt::launch(sum_rows_kernel<kSize, T>,
               dim3(blocks_for(n, 32 * kSize), static_cast<unsigned>(ranges)), dim3(kBiasThreads),
               0, queue, device_data<T>(dy), partials, dy.shape[0], n, range);
}

}  // namespace

void bias_gradient(const BiasGradientArgs& args, Stream& stream) {
  check_arguments(args);
  const cudaStream_t queue = handle(stream);
  const std::int64_t m = args.dy.shape[0];
  const std::int64_t n = args.dy.shape[1];
  if (n == 0) return;
  with_element_type("bias_gradient", args.dy.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const std::int64_t tiles = ceil_div(n, 32 * kSize);
    const std::int64_t most = std::max<std::int64_t>(1, ceil_div(m, kMinRows));
    const std::int64_t wanted = std::clamp<std::int64_t>(kTargetBlocks / tiles, 1, most);
    const std::int64_t range = std::max<std::int64_t>(1, ceil_div(m, wanted));
    const std::int64_t ranges = ceil_div(m, range);
    auto* const partials = static_cast<float*>(
        cuda_stream(stream).scratch(static_cast<std::size_t>(ranges * n) * sizeof(float)));
    if (ranges > 0) {
      n % kSize == 0 && groups_aligned<kSize>(device_data<T>(args.dy))
          ? launch_sums<kSize, T>(args.dy, partials, ranges, range, queue)
          : launch_sums<1, T>(args.dy, partials, ranges, range, queue);
    }
    with_element_type("bias_gradient", args.db.dtype, [&](auto db_type) {
      using D = typename decltype(db_type)::type;
      simt::launch(combine_kernel<D>, dim3(blocks_for(n, 32)), dim3(32 * kCombineWarps), 0, queue,
                   partials, ranges, n, device_data<D>(args.db), args.accumulate);
    });
  });
}

}  // namespace tessera::cuda
