#include <type_traits>

#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// cast, add, fill: each element by itself, with the CPU's bits (a NaN that is rounded is CUDA's).
// Bytes: src and dst once (add: dst twice).

namespace tessera::cuda {
namespace {

template <typename Src, typename Dst>
struct Cast {
  const Src* src;
  Dst* dst;
  float scale;

  template <int kSize>
  __device__ Pack<Src, kSize> load(std::int64_t i) const {
    return load_pack<kSize>(src + i);
  }
  template <int kSize>
  __device__ void store(std::int64_t i, const Pack<Src, kSize>& group) const {
    if (std::is_same_v<Src, Dst> && scale == 1.0F) {
      if constexpr (std::is_same_v<Src, Dst>) store_pack(dst + i, group);
      return;
    }
    Pack<Dst, kSize> result;
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      result.v[e] = simt::from_float<Dst>(__fmul_rn(simt::to_float(group.v[e]), scale));
    }
    store_pack(dst + i, result);
  }
};

template <typename Src, typename Dst>
struct Add {
  const Src* src;
  Dst* dst;

  template <int kSize>
  struct Group {
    Pack<Src, kSize> src;
    Pack<Dst, kSize> dst;
  };
  template <int kSize>
  __device__ Group<kSize> load(std::int64_t i) const {
    return {load_pack<kSize>(src + i), load_pack<kSize>(dst + i)};
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Group<kSize> group) const {
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      group.dst.v[e] = simt::from_float<Dst>(
          __fadd_rn(simt::to_float(group.dst.v[e]), simt::to_float(group.src.v[e])));
    }
    store_pack(dst + i, group.dst);
  }
};

template <typename T>
struct Fill {
  T* dst;
  float value;
  const float* factor;  // null: 1

  /// The factor comes from a cache after the first time.
  template <int kSize>
  __device__ Pack<T, kSize> load(std::int64_t) const {
    const T filling = simt::from_float<T>(factor != nullptr ? __fmul_rn(value, *factor) : value);
    Pack<T, kSize> group;
#pragma unroll
    for (int e = 0; e < kSize; ++e) group.v[e] = filling;
    return group;
  }
  template <int kSize>
  __device__ void store(std::int64_t i, const Pack<T, kSize>& group) const {
    store_pack(dst + i, group);
  }
};

/// Launches Op<Src, Dst>, whose members are `src`, `dst` and `more`.
template <template <typename, typename> typename Op, typename Args, typename... More>
void launch_pair(const char* kernel, const Args& args, Stream& stream, More... more) {
  with_element_types(kernel, args.src.dtype, args.dst.dtype, [&](auto src_type, auto dst_type) {
    using Src = typename decltype(src_type)::type;
    using Dst = typename decltype(dst_type)::type;
    constexpr int kSize = kGroupOf<Src> < kGroupOf<Dst> ? kGroupOf<Src> : kGroupOf<Dst>;
    const Op<Src, Dst> op{device_data<Src>(args.src), device_data<Dst>(args.dst), more...};
    launch_elementwise<kSize>(op, args.dst.numel(), groups_aligned<kSize>(op.src, op.dst), stream);
  });
}

}  // namespace

void cast(const CastArgs& args, Stream& stream) {
  check_arguments(args);
  launch_pair<Cast>("cast", args, stream, args.scale);
}

void add(const AddArgs& args, Stream& stream) {
  check_arguments(args);
  launch_pair<Add>("add", args, stream);
}

void fill(const FillArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("fill", args.dst.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Fill<T> op{device_data<T>(args.dst), args.value,
                     args.factor ? args.factor.as<float>() : nullptr};
    launch_elementwise<kGroupOf<T>>(op, args.dst.numel(), groups_aligned<kGroupOf<T>>(op.dst),
                                    stream);
  });
}

}  // namespace tessera::cuda
