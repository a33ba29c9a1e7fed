#include "cuda/attention_cuda.h"
#include "cuda/cuda_launch.h"
#include "simt.h"

// delta = rowsum(d_out * out) and lse2 = lse * log2(e), per query and head.
// d_out, out (B, L, H, D); lse (B, H, L); results (B * H, L padded to kStatisticsPadding) fp32.
// A group of lanes takes a row: each lane sums its elements in order, then the group adds in a
// tree. Bytes: 4 B L H D for 16 bits, read once; the results are 1/D of that.

namespace tessera::cuda {
namespace {

constexpr int kStatisticsThreads = 256;

template <typename T>
struct StatisticsProblem {
  AttentionLayout layout;
  const T *d_out, *out;
  const float* lse;
  float *lse2, *delta;
  std::int64_t stride;  // padded length
  int lanes;            // per row, a power of two up to 32
};

/// This lane's part of the dot product of two rows of `dim` elements.
template <bool kVector, typename T>
__device__ float partial_dot(const T* a, const T* b, int dim, int lane, int lanes) {
  float sum = 0.0F;
  if constexpr (kVector) {
    constexpr int kSize = simt::Vec16<T>::kSize;
    for (int d = lane * kSize; d < dim; d += lanes * kSize) {
      const simt::Vec16<T> x = simt::load16_streaming(a + d), y = simt::load16(b + d);
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        sum = fmaf(simt::to_float(x.v[i]), simt::to_float(y.v[i]), sum);
    }
  } else {
    for (int d = lane; d < dim; d += lanes) {
      sum = fmaf(simt::to_float(a[d]), simt::to_float(b[d]), sum);
    }
  }
  return sum;
}

/// Rows are numbered (b, l, h) with l over the padded length: neighbours lie side by side.
template <bool kVector, typename T>
__global__ void __launch_bounds__(kStatisticsThreads)
    statistics_kernel(StatisticsProblem<T> problem) {
  const AttentionLayout& layout = problem.layout;
  const std::int64_t thread =
      static_cast<std::int64_t>(blockIdx.x) * kStatisticsThreads + threadIdx.x;
  const std::int64_t index = thread / problem.lanes;
  const int lane = static_cast<int>(thread % problem.lanes);
  const bool exists = index < layout.all_heads() * problem.stride;
  const std::int64_t h = index % layout.heads;
  const std::int64_t l = index / layout.heads % problem.stride;
  const std::int64_t b = index / layout.heads / problem.stride;
  const bool padding = l >= layout.length;
  float sum = 0.0F;
  if (exists && !padding) {
    const std::int64_t row = ((b * layout.length + l) * layout.heads + h) * layout.head_dim;
    sum = partial_dot<kVector>(problem.d_out + row, problem.out + row, layout.head_dim, lane,
                               problem.lanes);
  }
  for (int step = problem.lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  if (!exists || lane != 0) return;
  const std::int64_t to = (b * layout.heads + h) * problem.stride + l;
  problem.delta[to] = sum;
  problem.lse2[to] =
      padding ? INFINITY : problem.lse[(b * layout.heads + h) * layout.length + l] * kLog2E;
}

template <typename T>
void launch_statistics(const AttentionBackwardArgs& args, const RowStatistics& to, float* lse2,
                       float* delta, cudaStream_t stream) {
  StatisticsProblem<T> problem{AttentionLayout(args.qkv, args.window),
                               device_data<const T>(args.d_out),
                               device_data<const T>(args.out),
                               args.lse.as<float>(),
                               lse2,
                               delta,
                               to.stride,
                               1};
  const AttentionLayout& layout = problem.layout;
  const bool vector = layout.head_dim % simt::Vec16<T>::kSize == 0 &&
                      is_aligned(args.d_out.data, 16) && is_aligned(args.out.data, 16);
  const int parts = vector ? layout.head_dim / simt::Vec16<T>::kSize : layout.head_dim;
  while (problem.lanes < parts && problem.lanes < 32) problem.lanes *= 2;
  const unsigned blocks =
      blocks_for(layout.all_heads() * to.stride * problem.lanes, kStatisticsThreads);
  simt::launch(vector ? statistics_kernel<true, T> : statistics_kernel<false, T>, dim3(blocks),
               dim3(kStatisticsThreads), 0, stream, problem);
}

}  // namespace

RowStatistics row_statistics(const AttentionBackwardArgs& args, CudaStream& stream) {
  const AttentionLayout layout(args.qkv, args.window);
  const std::int64_t stride = layout.tiles(kStatisticsPadding) * kStatisticsPadding;
  const std::int64_t count = layout.all_heads() * stride;
  auto* lse2 = static_cast<float*>(attention_scratch(
      args.workspace, 2 * static_cast<std::size_t>(count) * sizeof(float), stream));
  const RowStatistics result{lse2, lse2 + count, stride};
  with_element_type("attention", args.qkv.dtype, [&]<typename T>(ElementType<T>) {
    launch_statistics<T>(args, result, lse2, lse2 + count, stream.handle());
  });
  return result;
}

}  // namespace tessera::cuda
