#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/swiglu_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"
#include "cpu/smooth_activations.h"

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// y = f(gate) up, f SiLU or GELU (smooth_activations.h); x is (rows, 2 F), gate before up in each
// row. Backward: d gate = dy up f'(gate), d up = dy f(gate).
// Traffic: forward reads x and writes y, backward reads x and dy and writes dx.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

template <typename Function, typename T>
void swiglu_forward_typed(const SwigluForwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = args.y.shape[1];
  for (std::int64_t row = begin; row < end; ++row) {
    const T* const gate = args.x.as<T>() + row * 2 * width;
    T* const y = args.y.as<T>() + row * width;
    for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
      const auto f = Function::forward(load_n(gate + i, count));
      store_n(hn::Mul(f, load_n(gate + width + i, count)), y + i, count);
    });
  }
}

template <typename Function, typename T>
void swiglu_backward_typed(const SwigluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = args.dy.shape[1];
  for (std::int64_t row = begin; row < end; ++row) {
    const T* const gate = args.x.as<T>() + row * 2 * width;
    const T* const gradient = args.dy.as<T>() + row * width;
    T* const to = args.dx.as<T>() + row * 2 * width;
    for_each_vector(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
      const auto g = load_n(gate + i, count);
      const auto up = load_n(gate + width + i, count);
      const auto dy = load_n(gradient + i, count);
      store_n(Function::backward(g, hn::Mul(dy, up)), to + i, count);
      store_n(hn::Mul(dy, Function::forward(g)), to + width + i, count);
    });
  }
}

void swiglu_forward_rows(const SwigluForwardArgs& args, std::int64_t begin, std::int64_t end) {
  with_float_type(args.x.dtype, [&]<typename T>(T) HWY_ATTR {
    if (args.function == GateFunction::kSilu) {
      swiglu_forward_typed<Silu, T>(args, begin, end);
    } else {
      swiglu_forward_typed<Gelu, T>(args, begin, end);
    }
  });
}

void swiglu_backward_rows(const SwigluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  with_float_type(args.x.dtype, [&]<typename T>(T) HWY_ATTR {
    if (args.function == GateFunction::kSilu) {
      swiglu_backward_typed<Silu, T>(args, begin, end);
    } else {
      swiglu_backward_typed<Gelu, T>(args, begin, end);
    }
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(swiglu_forward_rows);
HWY_EXPORT(swiglu_backward_rows);

/// Rows of about 16 KiB elements together are worth a thread.
std::int64_t rows_per_thread(std::int64_t width) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(width, 1));
}

}  // namespace

void swiglu_forward(const SwigluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t least = rows_per_thread(args.y.shape[1]);
  parallel_for(args.y.shape[0], least, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_forward_rows)(args, begin, end);
  });
  if (args.amax) amax({.x = args.y, .amax = args.amax}, stream);
}

void swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t least = rows_per_thread(args.dy.shape[1]);
  parallel_for(args.dy.shape[0], least, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_backward_rows)(args, begin, end);
  });
  if (args.amax) amax({.x = args.dx, .amax = args.amax}, stream);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
