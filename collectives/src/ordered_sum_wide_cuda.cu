// dst[i] = sources[0][i] + sources[1][i] + ..., fp64 or int64, added in this order: the all-reduce
// of the few numbers that ranks exchange in 8 bytes. Moves 8 (sources + 1) n bytes; a thread per
// element, which reads every source before it writes, so dst may be one of them.
#include "ordered_sum_wide_cuda.h"

#include <simt.h>

#include <algorithm>
#include <cstdint>

#include "tessera/core/error.h"

namespace tessera::cuda {
namespace {

constexpr int kMaxWideSources = 256;  // as kernel arguments: 2 of the 4 KB that there are
constexpr int kWideBlock = 256;  // no shared state: any size that fills a multiprocessor will do
constexpr std::int64_t kMaxWideBlocks = 1024;

template <typename T>
struct WideSources {
  const T* data[kMaxWideSources];
  int count;
};

template <typename T>
__global__ void ordered_sum_wide_kernel(WideSources<T> sources, T* dst, std::int64_t n) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    T sum = sources.data[0][i];
    for (int s = 1; s < sources.count; ++s) sum += sources.data[s][i];
    dst[i] = sum;
  }
}

template <typename T>
void launch_sum(std::span<const TensorView> sources, const TensorView& dst, CudaStream& stream) {
  const std::int64_t n = dst.numel();
  WideSources<T> by_value{};
  by_value.count = static_cast<int>(sources.size());
  for (std::size_t s = 0; s < sources.size(); ++s) by_value.data[s] = sources[s].as<T>();
  const auto blocks =
      static_cast<unsigned>(std::min((n + kWideBlock - 1) / kWideBlock, kMaxWideBlocks));
  simt::launch(ordered_sum_wide_kernel<T>, dim3(blocks), dim3(kWideBlock), 0, stream.handle(),
               by_value, dst.as<T>(), n);
}

}  // namespace

void ordered_sum_wide(std::span<const TensorView> sources, const TensorView& dst,
                      CudaStream& stream) {
  require(!sources.empty() && sources.size() <= kMaxWideSources, ErrorCode::kInvalidArgument,
          "a sum of ", to_string(dst.dtype), " over ", sources.size(),
          " ranks of one GPU; at most ", kMaxWideSources, " are possible");
  if (dst.numel() == 0) return;
  dst.dtype == DType::kInt64 ? launch_sum<std::int64_t>(sources, dst, stream)
                             : launch_sum<double>(sources, dst, stream);
}

}  // namespace tessera::cuda
