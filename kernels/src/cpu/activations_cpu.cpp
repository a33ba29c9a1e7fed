#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/activations_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"
#include "cpu/smooth_activations.h"

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "elementwise_arguments.h"

// GELU, SiLU and tanh (smooth_activations.h), ReLU, and a soft cap. Each but the last is a function
// of one element and its backward, of what forward has saved and of dy; forward_range and
// backward_range apply them. Traffic: forward reads x and writes y, backward reads what was saved
// and dy and writes dx.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// y = max(x, 0), dx = dy where y > 0. What is compared is "not above 0", so NaN passes.
struct Relu {
  static HWY_INLINE FloatVec backward(FloatVec y, FloatVec dy) {
    return hn::IfThenZeroElse(hn::Le(y, splat(0.0F)), dy);
  }
  static HWY_INLINE FloatVec forward(FloatVec x) { return backward(x, x); }
};

template <typename T>
void soft_cap_range_typed(const SoftCapArgs& args, std::int64_t begin, std::int64_t end) {
  const SoftCap capped(args.cap);
  const T* const from = args.x.as<T>() + begin;
  T* const to = args.y.as<T>() + begin;
  for_each_vector(end - begin, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(capped(load_n(from + i, count)), to + i, count);
  });
}

void soft_cap_range(const SoftCapArgs& args, std::int64_t begin, std::int64_t end) {
  with_float_type(args.x.dtype,
                  [&]<typename T>(T) HWY_ATTR { soft_cap_range_typed<T>(args, begin, end); });
}

template <typename Function, typename T>
void forward_range(const TensorView& x, const TensorView& y, std::int64_t begin, std::int64_t end) {
  const T* const from = x.as<T>() + begin;
  T* const to = y.as<T>() + begin;
  for_each_vector(end - begin, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(Function::forward(load_n(from + i, count)), to + i, count);
  });
}

template <typename Function, typename T>
void backward_range(const TensorView& saved, const TensorView& dy, const TensorView& dx,
                    std::int64_t begin, std::int64_t end) {
  const T* const from = saved.as<T>() + begin;
  const T* const gradient = dy.as<T>() + begin;
  T* const to = dx.as<T>() + begin;
  for_each_vector(end - begin, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(Function::backward(load_n(from + i, count), load_n(gradient + i, count)), to + i,
            count);
  });
}

template <typename Function>
void forward(const TensorView& x, const TensorView& y, std::int64_t begin, std::int64_t end) {
  with_float_type(x.dtype,
                  [&]<typename T>(T) HWY_ATTR { forward_range<Function, T>(x, y, begin, end); });
}

template <typename Function>
void backward(const TensorView& saved, const TensorView& dy, const TensorView& dx,
              std::int64_t begin, std::int64_t end) {
  with_float_type(saved.dtype, [&]<typename T>(T) HWY_ATTR {
    backward_range<Function, T>(saved, dy, dx, begin, end);
  });
}

// Highway's table takes names alone as entries.
constexpr auto& gelu_forward_range = forward<Gelu>;
constexpr auto& gelu_backward_range = backward<Gelu>;
constexpr auto& erf_gelu_forward_range = forward<ErfGelu>;
constexpr auto& erf_gelu_backward_range = backward<ErfGelu>;
constexpr auto& tanh_forward_range = forward<Tanh>;
constexpr auto& tanh_backward_range = backward<Tanh>;
constexpr auto& silu_forward_range = forward<Silu>;
constexpr auto& silu_backward_range = backward<Silu>;
constexpr auto& relu_forward_range = forward<Relu>;
constexpr auto& relu_backward_range = backward<Relu>;

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(gelu_forward_range);
HWY_EXPORT(gelu_backward_range);
HWY_EXPORT(erf_gelu_forward_range);
HWY_EXPORT(erf_gelu_backward_range);
HWY_EXPORT(tanh_forward_range);
HWY_EXPORT(tanh_backward_range);
HWY_EXPORT(silu_forward_range);
HWY_EXPORT(silu_backward_range);
HWY_EXPORT(relu_forward_range);
HWY_EXPORT(relu_backward_range);
HWY_EXPORT(soft_cap_range);

/// Elements per chunk: 16 Ki of GELU take some 10 us, well above the cost of waking a thread; a
/// multiple of every vector length, so that the split changes no bit.
constexpr std::int64_t kGrain = 16384;

template <typename Range, typename... Views>
void run(const Range& range, const TensorView& first, const Views&... others) {
  parallel_for(first.numel(), kGrain,
               [&](std::int64_t begin, std::int64_t end) { range(first, others..., begin, end); });
}

}  // namespace

void gelu_forward(const GeluForwardArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.form == GeluForm::kErf) {
    run(HWY_DYNAMIC_DISPATCH(erf_gelu_forward_range), args.x, args.y);
  } else {
    run(HWY_DYNAMIC_DISPATCH(gelu_forward_range), args.x, args.y);
  }
  if (args.amax) amax({.x = args.y, .amax = args.amax}, stream);
}

void gelu_backward(const GeluBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  if (args.form == GeluForm::kErf) {
    run(HWY_DYNAMIC_DISPATCH(erf_gelu_backward_range), args.x, args.dy, args.dx);
  } else {
    run(HWY_DYNAMIC_DISPATCH(gelu_backward_range), args.x, args.dy, args.dx);
  }
  if (args.amax) amax({.x = args.dx, .amax = args.amax}, stream);
}

void silu_forward(const SiluForwardArgs& args, Stream&) {
  check_arguments(args);
  run(HWY_DYNAMIC_DISPATCH(silu_forward_range), args.x, args.y);
}

void silu_backward(const SiluBackwardArgs& args, Stream&) {
  check_arguments(args);
  run(HWY_DYNAMIC_DISPATCH(silu_backward_range), args.x, args.dy, args.dx);
}

void relu_forward(const ReluForwardArgs& args, Stream&) {
  check_arguments(args);
  if (args.function == OutputActivation::kTanh) {
    run(HWY_DYNAMIC_DISPATCH(tanh_forward_range), args.x, args.y);
  } else {
    run(HWY_DYNAMIC_DISPATCH(relu_forward_range), args.x, args.y);
  }
}

void relu_backward(const ReluBackwardArgs& args, Stream&) {
  check_arguments(args);
  if (args.function == OutputActivation::kTanh) {
    run(HWY_DYNAMIC_DISPATCH(tanh_backward_range), args.y, args.dy, args.dx);
  } else {
    run(HWY_DYNAMIC_DISPATCH(relu_backward_range), args.y, args.dy, args.dx);
  }
}

void soft_cap(const SoftCapArgs& args, Stream&) {
  check_arguments(args);
  parallel_for(args.x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(soft_cap_range)(args, begin, end);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
