#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ordered_sum_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"
#include "cpu/stream_store.h"

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// dst = [dst +] src_0 + src_1 + ..., rounded to fp32 after each addition in this order. A group of
// four vectors passes all sources before the next group, so that memory is read and written once:
// (sources [+ 1] + 1) n elements of traffic.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE FloatVec load_any_n(const TensorView& view, std::int64_t i, std::int64_t count) {
  if (view.dtype == DType::kFloat32) {
    return load_n(reinterpret_cast<const float*>(view.data) + i, count);
  }
  if (view.dtype == DType::kFloat16) {
    return load_n(reinterpret_cast<const float16*>(view.data) + i, count);
  }
  return load_n(reinterpret_cast<const bfloat16*>(view.data) + i, count);
}

/// Four vectors from element i on.
struct Group {
  FloatVec v0, v1, v2, v3;
};

template <typename T>
HWY_INLINE Group load_group(const T* from, std::int64_t lanes) {
  return {load(from), load(from + lanes), load(from + 2 * lanes), load(from + 3 * lanes)};
}

HWY_INLINE Group load_any_group(const TensorView& view, std::int64_t i, std::int64_t lanes) {
  if (view.dtype == DType::kFloat32) {
    return load_group(reinterpret_cast<const float*>(view.data) + i, lanes);
  }
  if (view.dtype == DType::kFloat16) {
    return load_group(reinterpret_cast<const float16*>(view.data) + i, lanes);
  }
  return load_group(reinterpret_cast<const bfloat16*>(view.data) + i, lanes);
}

HWY_INLINE void add_group(Group& sum, const Group& term) {
  sum.v0 = hn::Add(sum.v0, term.v0);
  sum.v1 = hn::Add(sum.v1, term.v1);
  sum.v2 = hn::Add(sum.v2, term.v2);
  sum.v3 = hn::Add(sum.v3, term.v3);
}

/// Elements [begin, begin + n) of the sum, to out[0 .. n).
template <typename Dst>
HWY_INLINE void write_sums(const TensorView& first, std::span<const TensorView> rest, Dst* out,
                           std::int64_t begin, std::int64_t n) {
  const std::int64_t lanes = float_lanes();
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    Group sum = load_any_group(first, begin + i, lanes);
    for (const TensorView& source : rest) add_group(sum, load_any_group(source, begin + i, lanes));
    store(sum.v0, out + i);
    store(sum.v1, out + i + lanes);
    store(sum.v2, out + i + 2 * lanes);
    store(sum.v3, out + i + 3 * lanes);
  }
  for_each_vector(n - i, [&](std::int64_t k, std::int64_t count) HWY_ATTR {
    const std::int64_t element = begin + i + k;
    auto sum = load_any_n(first, element, count);
    for (const TensorView& source : rest) sum = hn::Add(sum, load_any_n(source, element, count));
    store_n(sum, out + i + k, count);
  });
}

template <typename Dst>
void ordered_sum_typed(const TensorView& first, std::span<const TensorView> rest,
                       const TensorView& dst_view, std::int64_t begin, std::int64_t end) {
  Dst* const dst = dst_view.as<Dst>() + begin;
  // The tensor that is added to is in the cache already when it is written.
  const std::int64_t tensor_bytes = first.data == dst_view.data ? 0 : dst_view.bytes();
  write_streaming(dst, end - begin, tensor_bytes,
                  [&](Dst* out, std::int64_t i, std::int64_t n)
                      HWY_ATTR { write_sums(first, rest, out, begin + i, n); });
}

void ordered_sum_range(const TensorView& first, std::span<const TensorView> rest,
                       const TensorView& dst, std::int64_t begin, std::int64_t end) {
  with_float_type(dst.dtype, [&]<typename T>(T)
                                 HWY_ATTR { ordered_sum_typed<T>(first, rest, dst, begin, end); });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(ordered_sum_range);

/// Elements per chunk: a few microseconds of memory traffic, and whole cache lines of any dtype.
constexpr std::int64_t kGrain = 16384;

}  // namespace

void ordered_sum(const OrderedSumArgs& args, Stream&) {
  check_arguments(args);
  const TensorView& first = args.accumulate ? args.dst : args.sources.front();
  const auto rest = args.accumulate ? args.sources : args.sources.subspan(1);
  parallel_for(args.dst.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(ordered_sum_range)(first, rest, args.dst, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
