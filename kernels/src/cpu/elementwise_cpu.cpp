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
  with_float_type(args.src.dtype, [&]<typename Src>(Src) HWY_ATTR {
    with_float_type(args.dst.dtype, [&]<typename Dst>(Dst) HWY_ATTR {
      scale_typed(args.src.as<Src>() + begin, args.dst.as<Dst>() + begin, args.scale, end - begin);
    });
  });
}

void cast_range(const CastArgs& args, std::int64_t begin, std::int64_t end) {
  if (args.scale != 1.0F) return scale_range(args, begin, end);
  const std::int64_t n = end - begin;
  if (args.src.dtype == args.dst.dtype) {
    const auto size = static_cast<std::int64_t>(size_of(args.dst.dtype));
    std::memmove(args.dst.data + begin * size, args.src.data + begin * size,
                 static_cast<std::size_t>(n * size));
    return;
  }
  with_float_type(args.src.dtype, [&]<typename Src>(Src) HWY_ATTR {
    with_float_type(args.dst.dtype, [&]<typename Dst>(Dst) HWY_ATTR {
      cast_typed(args.src.as<Src>() + begin, args.dst.as<Dst>() + begin, n, args.dst.bytes());
    });
  });
}

void add_range(const AddArgs& args, std::int64_t begin, std::int64_t end) {
  with_float_type(args.src.dtype, [&]<typename Src>(Src) HWY_ATTR {
    with_float_type(args.dst.dtype, [&]<typename Dst>(Dst) HWY_ATTR {
      add_typed(args.src.as<Src>() + begin, args.dst.as<Dst>() + begin, end - begin);
    });
  });
}

void fill_range(const FillArgs& args, std::int64_t begin, std::int64_t end) {
  const float value = args.factor ? args.value * *args.factor.as<float>() : args.value;
  with_float_type(args.dst.dtype, [&]<typename T>(T) HWY_ATTR {
    fill_typed(args.dst.as<T>() + begin, value, end - begin, args.dst.bytes());
  });
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
