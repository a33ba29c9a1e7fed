#include <algorithm>
#include <type_traits>

#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// dst = [dst +] src_0 + src_1 + ..., each element by one thread, in that order, in fp32, rounded
// once: the CPU's bits. The sources' addresses are kernel parameters, so that nothing has to be
// copied to the device first. Bytes: each source and dst once.

namespace tessera::cuda {
namespace {

/// Sources of one launch: their addresses must fit into the parameters of a kernel.
constexpr int kMaxSources = 512;
/// A smaller kernel for usual numbers: parameters are copied by every launch.
constexpr int kFewSources = 16;
/// Sources whose loads are on their way together.
constexpr int kAhead = 4;
constexpr int kThreads = kElementwiseThreads;

template <int kCapacity>
struct Sources {
  const void* data[kCapacity];
  std::uint32_t is_bf16[(kCapacity + 31) / 32];  // one bit each
  int count;
};

/// Stands for the type of sources of both types.
struct Mixed {};

template <typename Src>
using LoadedType = std::conditional_t<std::is_same_v<Src, Mixed>, float, Src>;

template <int kSize, typename Src, int kCapacity>
__device__ Pack<LoadedType<Src>, kSize> load_source(const Sources<kCapacity>& sources, int s,
                                                    std::int64_t i) {
  if constexpr (!std::is_same_v<Src, Mixed>) {
    return load_pack<kSize>(static_cast<const Src*>(sources.data[s]) + i);
  } else {
    if ((sources.is_bf16[s / 32] >> (s % 32) & 1U) == 0) {
      return load_pack<kSize>(static_cast<const float*>(sources.data[s]) + i);
    }
    const auto narrow = load_pack<kSize>(static_cast<const simt::bf16*>(sources.data[s]) + i);
    Pack<float, kSize> result;
#pragma unroll
    for (int e = 0; e < kSize; ++e) result.v[e] = simt::to_float(narrow.v[e]);
    return result;
  }
}

template <int kSize, typename T>
__device__ void add_to(Pack<float, kSize>& sum, const Pack<T, kSize>& term) {
#pragma unroll
  for (int e = 0; e < kSize; ++e) sum.v[e] = __fadd_rn(sum.v[e], simt::to_float(term.v[e]));
}

template <int kSize, typename T>
__device__ Pack<float, kSize> widened(const Pack<T, kSize>& pack) {
  Pack<float, kSize> result;
#pragma unroll
  for (int e = 0; e < kSize; ++e) result.v[e] = simt::to_float(pack.v[e]);
  return result;
}

template <int kSize, typename Src, typename Dst, int kCapacity>
__device__ void sum_group(const Sources<kCapacity>& sources, Dst* dst, bool accumulate,
                          std::int64_t i) {
  int s = accumulate ? 0 : 1;
  Pack<float, kSize> sum = accumulate ? widened(load_pack<kSize>(dst + i))
                                      : widened(load_source<kSize, Src>(sources, 0, i));
  for (; s + kAhead <= sources.count; s += kAhead) {
    Pack<LoadedType<Src>, kSize> terms[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) terms[a] = load_source<kSize, Src>(sources, s + a, i);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) add_to(sum, terms[a]);
  }
  for (; s < sources.count; ++s) add_to(sum, load_source<kSize, Src>(sources, s, i));
  Pack<Dst, kSize> result;
#pragma unroll
  for (int e = 0; e < kSize; ++e) result.v[e] = simt::from_float<Dst>(sum.v[e]);
  store_pack(dst + i, result);
}

template <int kSize, typename Src, typename Dst, int kCapacity>
__global__ void __launch_bounds__(kThreads)
    ordered_sum_kernel(const __grid_constant__ Sources<kCapacity> sources, Dst* dst,
                       bool accumulate, std::int64_t n) {
  const std::int64_t thread =
      static_cast<std::int64_t>(blockIdx.x) * kThreads + static_cast<std::int64_t>(threadIdx.x);
  const std::int64_t begin = thread * kSize;
  if (begin + kSize <= n) {
    sum_group<kSize, Src>(sources, dst, accumulate, begin);
    return;
  }
  for (std::int64_t i = begin; i < n; ++i) sum_group<1, Src>(sources, dst, accumulate, i);
}

template <int kSize, typename Src, typename Dst, int kCapacity>
void launch_sum(const OrderedSumArgs& args, cudaStream_t queue) {
  Sources<kCapacity> sources{};
  for (const TensorView& source : args.sources) {
    const bool is_bf16 = source.dtype == DType::kBFloat16;
    sources.is_bf16[sources.count / 32] |= static_cast<std::uint32_t>(is_bf16)
                                           << (sources.count % 32);
    sources.data[sources.count++] = source.data;
  }
  const std::int64_t n = args.dst.numel();
  simt::launch(ordered_sum_kernel<kSize, Src, Dst, kCapacity>,
               dim3(blocks_for(n, std::int64_t{kThreads} * kSize)), dim3(kThreads), 0, queue,
               sources, device_data<Dst>(args.dst), args.accumulate, n);
}

template <int kSize, typename Src, typename Dst>
void launch_sized(const OrderedSumArgs& args, cudaStream_t queue) {
  args.sources.size() <= kFewSources ? launch_sum<kSize, Src, Dst, kFewSources>(args, queue)
                                     : launch_sum<kSize, Src, Dst, kMaxSources>(args, queue);
}

template <typename Src, typename Dst>
void launch_typed(const OrderedSumArgs& args, cudaStream_t queue) {
  constexpr int kSize = std::min(kGroupOf<LoadedType<Src>>, kGroupOf<Dst>);
  const auto grouped = [](const TensorView& view) {
    return is_aligned(view.data, kSize * size_of(view.dtype));
  };
  const bool all =
      grouped(args.dst) && std::all_of(args.sources.begin(), args.sources.end(), grouped);
  all ? launch_sized<kSize, Src, Dst>(args, queue) : launch_sized<1, Src, Dst>(args, queue);
}

}  // namespace

void ordered_sum(const OrderedSumArgs& args, Stream& stream) {
  check_arguments(args);
  require(args.sources.size() <= kMaxSources, ErrorCode::kInvalidArgument,
          "ordered_sum: ", args.sources.size(), " sources, more than the ", kMaxSources,
          " that CUDA takes at once; add the rest with accumulate");
  const cudaStream_t queue = handle(stream);
  if (args.dst.numel() == 0) return;
  const auto is_bf16 = [](const TensorView& view) { return view.dtype == DType::kBFloat16; };
  const auto halves = std::count_if(args.sources.begin(), args.sources.end(), is_bf16);
  with_element_type("ordered_sum", args.dst.dtype, [&](auto type) {
    using Dst = typename decltype(type)::type;
    if (halves == 0) {
      launch_typed<float, Dst>(args, queue);
    } else if (halves == std::ssize(args.sources)) {
      launch_typed<simt::bf16, Dst>(args, queue);
    } else {
      launch_typed<Mixed, Dst>(args, queue);
    }
  });
}

}  // namespace tessera::cuda
