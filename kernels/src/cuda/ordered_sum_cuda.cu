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
constexpr int kSourcesAhead = 4;
constexpr int kOrderedSumThreads = kElementwiseThreads;

template <int kCapacity>
struct Sources {
  const void* data[kCapacity];
  std::uint32_t is_half[(kCapacity + 31) / 32];  // one bit each: not fp32
  int count;
};

/// Stands for the type of sources of which some are fp32 and the others Half.
template <typename Half>
struct Mixed {};

/// As what a source of that type is loaded, and what the narrowest is in memory.
template <typename Src>
struct SourceType {
  using Loaded = Src;
  using Narrow = Src;
};
template <typename Half>
struct SourceType<Mixed<Half>> {
  using Loaded = float;
  using Narrow = Half;
};
template <typename Src>
using LoadedType = typename SourceType<Src>::Loaded;

template <int kSize, typename T>
__device__ Pack<float, kSize> widened(const Pack<T, kSize>& pack) {
  Pack<float, kSize> result;
#pragma unroll
  for (int e = 0; e < kSize; ++e) result.v[e] = simt::to_float(pack.v[e]);
  return result;
}

template <int kSize, typename Src, int kCapacity>
__device__ Pack<LoadedType<Src>, kSize> load_source(const Sources<kCapacity>& sources, int s,
                                                    std::int64_t i) {
  using Narrow = typename SourceType<Src>::Narrow;
  if constexpr (std::is_same_v<Src, Narrow>) {
    return load_pack<kSize>(static_cast<const Src*>(sources.data[s]) + i);
  } else {
    if ((sources.is_half[s / 32] >> (s % 32) & 1U) == 0) {
      return load_pack<kSize>(static_cast<const float*>(sources.data[s]) + i);
    }
    return widened(load_pack<kSize>(static_cast<const Narrow*>(sources.data[s]) + i));
  }
}

template <int kSize, typename T>
__device__ void add_to(Pack<float, kSize>& sum, const Pack<T, kSize>& term) {
#pragma unroll
  for (int e = 0; e < kSize; ++e) sum.v[e] = __fadd_rn(sum.v[e], simt::to_float(term.v[e]));
}

template <int kSize, typename Src, typename Dst, int kCapacity>
__device__ void sum_group(const Sources<kCapacity>& sources, Dst* dst, bool accumulate,
                          std::int64_t i) {
  int s = accumulate ? 0 : 1;
  Pack<float, kSize> sum = accumulate ? widened(load_pack<kSize>(dst + i))
                                      : widened(load_source<kSize, Src>(sources, 0, i));
  for (; s + kSourcesAhead <= sources.count; s += kSourcesAhead) {
    Pack<LoadedType<Src>, kSize> terms[kSourcesAhead];
#pragma unroll
    for (int a = 0; a < kSourcesAhead; ++a) terms[a] = load_source<kSize, Src>(sources, s + a, i);
#pragma unroll
    for (int a = 0; a < kSourcesAhead; ++a) add_to(sum, terms[a]);
  }
  for (; s < sources.count; ++s) add_to(sum, load_source<kSize, Src>(sources, s, i));
  Pack<Dst, kSize> result;
#pragma unroll
  for (int e = 0; e < kSize; ++e) result.v[e] = simt::from_float<Dst>(sum.v[e]);
  store_pack(dst + i, result);
}

template <int kSize, typename Src, typename Dst, int kCapacity>
__global__ void __launch_bounds__(kOrderedSumThreads)
    ordered_sum_kernel(const __grid_constant__ Sources<kCapacity> sources, Dst* dst,
                       bool accumulate, std::int64_t n) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kOrderedSumThreads +
                              static_cast<std::int64_t>(threadIdx.x);
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
    const std::uint32_t bit = 1U << (sources.count % 32);
    sources.is_half[sources.count / 32] |= source.dtype == DType::kFloat32 ? 0U : bit;
    sources.data[sources.count++] = source.data;
  }
  const std::int64_t n = args.dst.numel();
  simt::launch(ordered_sum_kernel<kSize, Src, Dst, kCapacity>,
               dim3(blocks_for(n, std::int64_t{kOrderedSumThreads} * kSize)),
               dim3(kOrderedSumThreads), 0, queue, sources, device_data<Dst>(args.dst),
               args.accumulate, n);
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

/// The type of 16 bits that sources and dst have beside fp32; fp32 if they have none.
DType half_type(const OrderedSumArgs& args) {
  DType half = args.dst.dtype;
  for (const TensorView& source : args.sources) {
    if (source.dtype == DType::kFloat32) continue;
    require(half == DType::kFloat32 || half == source.dtype, ErrorCode::kInvalidArgument,
            "ordered_sum: a tensor is ", to_string(half), " and one ", to_string(source.dtype),
            ", which no kernel of a GPU mixes; go by way of fp32");
    half = source.dtype;
  }
  return half;
}

}  // namespace

void ordered_sum(const OrderedSumArgs& args, Stream& stream) {
  check_arguments(args);
  require(args.sources.size() <= kMaxSources, ErrorCode::kInvalidArgument,
          "ordered_sum: ", args.sources.size(), " sources, more than the ", kMaxSources,
          " that CUDA takes at once; add the rest with accumulate");
  const cudaStream_t queue = handle(stream);
  if (args.dst.numel() == 0) return;
  const DType half = half_type(args);
  const auto is_half = [](const TensorView& view) { return view.dtype != DType::kFloat32; };
  const auto halves = std::count_if(args.sources.begin(), args.sources.end(), is_half);
  with_element_types("ordered_sum", half, args.dst.dtype,
                     [&]<typename Half, typename Dst>(ElementType<Half>, ElementType<Dst>) {
                       if (halves == 0) return launch_typed<float, Dst>(args, queue);
                       if constexpr (!std::is_same_v<Half, float>) {
                         halves == std::ssize(args.sources)
                             ? launch_typed<Half, Dst>(args, queue)
                             : launch_typed<Mixed<Half>, Dst>(args, queue);
                       }
                     });
}

}  // namespace tessera::cuda
