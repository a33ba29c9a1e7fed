#include <algorithm>

#include "cuda/column_slabs.h"
#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// db[j] [+]= sum over i of dy[i][j], dy (M, N), in the order of column_slabs.h.
//
// Two launches. In the first a block takes a tile of columns of some slabs, a warp a group of the
// rows of one; the groups are added in shared memory, and the result goes to a row of partial sums
// (slabs, N) in scratch, which the second adds up. Bytes: dy once, and at most an eighth as much
// again for the partial sums (which stay in the L2 cache).

namespace tessera::cuda {
namespace {

constexpr int kBiasWarps = 8;
/// Rows per warp whose loads are on their way together.
constexpr int kBiasRowsAhead = 4;

/// sums += `count` rows of a column group, `stride` elements apart, from `rows` on, in order.
template <int kSize, typename T>
__device__ void add_rows(const T* rows, std::int64_t stride, int count, float (&sums)[kSize]) {
  int row = 0;
  for (; row + kBiasRowsAhead <= count; row += kBiasRowsAhead, rows += kBiasRowsAhead * stride) {
    Pack<T, kSize> ahead[kBiasRowsAhead];
#pragma unroll
    for (int r = 0; r < kBiasRowsAhead; ++r) ahead[r] = load_pack<kSize>(rows + r * stride);
#pragma unroll
    for (int r = 0; r < kBiasRowsAhead; ++r) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) sums[e] += simt::to_float(ahead[r].v[e]);
    }
  }
  for (; row < count; ++row, rows += stride) {
    const auto values = load_pack<kSize>(rows);
#pragma unroll
    for (int e = 0; e < kSize; ++e) sums[e] += simt::to_float(values.v[e]);
  }
}

/// partials (slabs, n). Block y takes as many slabs from y gridDim's on as it has warps for their
/// groups.
template <int kSize, typename T>
__global__ void __launch_bounds__(kSlabThreads)
    sum_slabs_kernel(const T* dy, float* partials, std::int64_t m, std::int64_t n,
                     std::int64_t slabs, int groups) {
  constexpr int kColumns = 32 * kSize;  // of a tile
  SIMT_SHARED(float[kSlabThreads / 32 * kColumns], of_warp);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int per_block = static_cast<int>(blockDim.x) / 32 / groups;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * per_block;
  const std::int64_t slab = first + warp / groups;
  const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * kColumns;
  const std::int64_t column = tile + lane * kSize;
  float sums[kSize] = {};
  if (slab < slabs && column < n) {  // n: whole column groups
    const std::int64_t row = slab + warp % groups * slabs, step = groups * slabs;
    const auto left = static_cast<unsigned>(row < m ? m - row : 0),
               apart = static_cast<unsigned>(step);
    const auto count = static_cast<int>((left + apart - 1) / apart);
    add_rows<kSize>(dy + row * n + column, step * n, count, sums);
  }
#pragma unroll
  for (int e = 0; e < kSize; ++e) of_warp[warp * kColumns + lane * kSize + e] = sums[e];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < per_block * kColumns;
       i += static_cast<int>(blockDim.x)) {
    const int c = i % kColumns;
    const std::int64_t to = first + i / kColumns;
    if (to >= slabs || tile + c >= n) continue;
    const float* const from = of_warp + i / kColumns * groups * kColumns + c;
    float sum = from[0];
    for (int g = 1; g < groups; ++g) sum += from[g * kColumns];
    partials[to * n + tile + c] = sum;
  }
}

constexpr int kSlabLanes = 16;

/// Columns 32 blockIdx.x and on of `first` (blockIdx.y = 0) or `second` (1), from `slabs` partial
/// sums, `stride` from one slab's to the next one's.
template <typename D>
__global__ void __launch_bounds__(32 * kSlabLanes)
    add_slabs(const float* partials, D* first, D* second, std::int64_t slabs, std::int64_t stride,
              int width, bool accumulate) {
  using LaneSums = float[kSlabLanes][32];
  SIMT_SHARED(LaneSums, sums);
  const auto column = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  const float* const from = partials + std::int64_t{blockIdx.y} * width + column;
  float sum = 0.0F;
  for (std::int64_t s = threadIdx.y; s < slabs && column < width; s += kSlabLanes) {
    sum += from[s * stride];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  D* const to = (blockIdx.y == 0 ? first : second) + column;
  float total = 0.0F;
  for (int lane = 0; lane < kSlabLanes; ++lane) total += sums[lane][threadIdx.x];
  *to = simt::from_float<D>(accumulate ? simt::to_float(*to) + total : total);
}

template <int kSize, typename T>
void launch_sums(const TensorView& dy, float* partials, const ColumnSlabs& slabs,
                 cudaStream_t queue) {
  const std::int64_t n = dy.shape[1];
  const int per_block = std::max(1, kBiasWarps / slabs.groups);
  simt::launch(sum_slabs_kernel<kSize, T>,
               dim3(blocks_for(n, 32 * kSize), blocks_for(slabs.slabs, per_block)),
               dim3(static_cast<unsigned>(32 * per_block * slabs.groups)), 0, queue,
               device_data<T>(dy), partials, dy.shape[0], n, slabs.slabs, slabs.groups);
}

}  // namespace

void SlabSums::add_into(const TensorView& first, const TensorView& second, bool accumulate,
                        cudaStream_t stream) const {
  with_element_type("column sums", first.dtype, [&]<typename D>(ElementType<D>) {
    simt::launch(add_slabs<D>, dim3(blocks_for(width, 32), second ? 2 : 1), dim3(32, kSlabLanes), 0,
                 stream, partials, device_data<D>(first), second ? device_data<D>(second) : nullptr,
                 slabs, stride, static_cast<int>(width), accumulate);
  });
}

void bias_gradient(const BiasGradientArgs& args, Stream& stream) {
  check_arguments(args);
  const cudaStream_t queue = handle(stream);
  const std::int64_t m = args.dy.shape[0];
  const std::int64_t n = args.dy.shape[1];
  if (n == 0) return;
  with_element_type("bias_gradient", args.dy.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const ColumnSlabs slabs = column_slabs(m, n, simt::Vec16<T>::kSize);
    auto* const partials = static_cast<float*>(
        cuda_stream(stream).scratch(static_cast<std::size_t>(slabs.slabs * n) * sizeof(float)));
    if (slabs.slabs > 0) {
      n % kSize == 0 && groups_aligned<kSize>(device_data<T>(args.dy))
          ? launch_sums<kSize, T>(args.dy, partials, slabs, queue)
          : launch_sums<1, T>(args.dy, partials, slabs, queue);
    }
    const SlabSums sums{.partials = partials, .slabs = slabs.slabs, .stride = n, .width = n};
    sums.add_into(args.db, {}, args.accumulate, queue);
  });
}

}  // namespace tessera::cuda
