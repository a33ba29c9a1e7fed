#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/multiply_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>
#include <limits>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// y = a b, element by element: rounded once to T. Traffic: reads a and b, writes y.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

void multiply_range(const MultiplyArgs& args, std::int64_t begin, std::int64_t end) {
  with_float_type(args.a.dtype, [&]<typename T>(T) HWY_ATTR {
    const T *const a = args.a.as<T>() + begin, *const b = args.b.as<T>() + begin;
    T* const y = args.y.as<T>() + begin;
    for_each_vector(end - begin, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
      store_n(hn::Mul(load_n(a + i, count), load_n(b + i, count)), y + i, count);
    });
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(multiply_range);

}  // namespace

void multiply(const MultiplyArgs& args, Stream&) {
  check_arguments(args);
  constexpr std::int64_t kGrain = 16384;  // elements: some 10 us
  parallel_for(args.a.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(multiply_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
