#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"
#include "cpu/stream_store.h"

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// cast, add, fill: one pass, each element by itself. Traffic: src and dst once (add: dst twice).

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

template <typename Src, typename Dst>
void cast_typed(const Src* src, Dst* dst, std::int64_t n, std::int64_t tensor_bytes) {
  write_streaming(dst, n, tensor_bytes,
                  [&](Dst* out, std::int64_t begin, std::int64_t count) HWY_ATTR {
                    for_each_vector(count, [&](std::int64_t i, std::int64_t lanes) HWY_ATTR {
                      store_n(load_n(src + begin + i, lanes), out + i, lanes);
                    });
                  });
}

template <typename Src, typename Dst>
void scale_typed(const Src* src, Dst* dst, float scale, std::int64_t n) {
  const auto factor = splat(scale);
  for_each_vector(n, [&](std::int64_t i, std::int64_t lanes) HWY_ATTR {
    store_n(hn::Mul(load_n(src + i, lanes), factor), dst + i, lanes);
  });
}

template <typename Src, typename Dst>
void add_typed(const Src* src, Dst* dst, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(hn::Add(load_n(dst + i, count), load_n(src + i, count)), dst + i, count);
  });
}

template <typename T>
void fill_typed(T* dst, float value, std::int64_t n, std::int64_t tensor_bytes) {
  const auto v = splat(value);
  write_streaming(dst, n, tensor_bytes, [&](T* out, std::int64_t, std::int64_t count) HWY_ATTR {
    for_each_vector(
        count, [&](std::int64_t i, std::int64_t lanes) HWY_ATTR { store_n(v, out + i, lanes); });
  });
}

void scale_range(const CastArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = end - begin;
  const bool from_float = args.src.dtype == DType::kFloat32;
  if (args.dst.dtype == DType::kFloat32) {
    auto* dst = args.dst.as<float>() + begin;
    from_float ? scale_typed(args.src.as<float>() + begin, dst, args.scale, n)
               : scale_typed(args.src.as<bfloat16>() + begin, dst, args.scale, n);
  } else {
    auto* dst = args.dst.as<bfloat16>() + begin;
    from_float ? scale_typed(args.src.as<float>() + begin, dst, args.scale, n)
               : scale_typed(args.src.as<bfloat16>() + begin, dst, args.scale, n);
  }
}

void cast_range(const CastArgs& args, std::int64_t begin, std::int64_t end) {
  if (args.scale != 1.0F) return scale_range(args, begin, end);
  const std::int64_t n = end - begin;
  const std::int64_t bytes = args.dst.bytes();
  const bool to_float = args.dst.dtype == DType::kFloat32;
  if (args.src.dtype == args.dst.dtype) {
    const auto size = static_cast<std::int64_t>(size_of(args.dst.dtype));
    std::memmove(args.dst.data + begin * size, args.src.data + begin * size,
                 static_cast<std::size_t>(n * size));
  } else if (to_float) {
    cast_typed(args.src.as<bfloat16>() + begin, args.dst.as<float>() + begin, n, bytes);
  } else {
    cast_typed(args.src.as<float>() + begin, args.dst.as<bfloat16>() + begin, n, bytes);
  }
}

void add_range(const AddArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = end - begin;
  const bool from_float = args.src.dtype == DType::kFloat32;
  if (args.dst.dtype == DType::kFloat32) {
    auto* dst = args.dst.as<float>() + begin;
    from_float ? add_typed(args.src.as<float>() + begin, dst, n)
               : add_typed(args.src.as<bfloat16>() + begin, dst, n);
  } else {
    auto* dst = args.dst.as<bfloat16>() + begin;
    from_float ? add_typed(args.src.as<float>() + begin, dst, n)
               : add_typed(args.src.as<bfloat16>() + begin, dst, n);
  }
}

void fill_range(const FillArgs& args, std::int64_t begin, std::int64_t end) {
  const float value = args.factor ? args.value * *args.factor.as<float>() : args.value;
  if (args.dst.dtype == DType::kFloat32) {
    fill_typed(args.dst.as<float>() + begin, value, end - begin, args.dst.bytes());
  } else {
    fill_typed(args.dst.as<bfloat16>() + begin, value, end - begin, args.dst.bytes());
  }
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(cast_range);
HWY_EXPORT(add_range);
HWY_EXPORT(fill_range);

/// Elements per chunk: a few microseconds of memory traffic, and whole cache lines of any dtype.
constexpr std::int64_t kGrain = 16384;

}  // namespace

void cast(const CastArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.dst.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cast_range)(args, begin, end);
  });
}

void add(const AddArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.dst.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_range)(args, begin, end);
  });
}

void fill(const FillArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.dst.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(fill_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
