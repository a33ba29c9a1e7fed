#pragma once

// Else Highway 1.0 refuses Sapphire Rapids as a baseline.
#define HWY_COMPILE_ONLY_STATIC
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include <omp.h>

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include "tessera/core/device.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/kernels/optimizer.h"

// Memory-bound kernels, each beside a loop that moves the same bytes: for sources that are compiled
// for the processor of the machine that builds them.
namespace tessera::bench {

struct AlignedDelete {
  void operator()(float* data) const { ::operator delete (data, std::align_val_t{64}); }
};

/// The tensors that all cases share; every page is touched first by the thread that will use it.
class Tensors {
 public:
  explicit Tensors(std::int64_t n) : elements(n) {
    for (auto& tensor : tensors_) {
      tensor.reset(static_cast<float*>(
          ::operator new (static_cast<std::size_t>(n) * sizeof(float), std::align_val_t{64})));
      float* const x = tensor.get();
#pragma omp parallel for schedule(static)
      for (std::int64_t i = 0; i < n; ++i) x[i] = 1e-3F;
    }
  }
  float* data(std::size_t t) const { return tensors_[t].get(); }
  TensorView floats(std::size_t t) const { return {data(t), DType::kFloat32, Shape{elements}}; }
  TensorView halves(std::size_t t) const { return {data(t), DType::kBFloat16, Shape{elements}}; }

  const std::int64_t elements;

 private:
  std::array<std::unique_ptr<float, AlignedDelete>, 5> tensors_;
};

/// Splits [0, n) over the threads as the kernels do and calls part(begin, end) for each.
template <typename Part>
void split(std::int64_t n, const Part& part) {
#pragma omp parallel
  {
    const std::int64_t t = omp_get_thread_num();
    const std::int64_t count = omp_get_num_threads();
    part(n / 64 * t / count * 64, t + 1 == count ? n : n / 64 * (t + 1) / count * 64);
  }
}

/// Calls body(i) for each element of each part.
template <typename Body>
void sweep(std::int64_t n, const Body& body) {
  split(n, [&body](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

struct Case {
  std::string name;
  std::int64_t bytes;
  std::function<void()> kernel;
  std::function<void()> floor;
};

/// a = b + 3 c, with streaming stores beside ordinary ones.
inline Case triad_case(const Tensors& tensors) {
  const std::int64_t n = tensors.elements;
  float* const a = tensors.data(0);
  const float* const b = tensors.data(1);
  const float* const c = tensors.data(2);
  const auto streaming = [=] {
    namespace hn = hwy::HWY_NAMESPACE;
    split(n, [=](std::int64_t begin, std::int64_t end) {
      const hn::ScalableTag<float> d;
      const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
      std::int64_t i = begin;
      for (; i + lanes <= end; i += lanes) {
        hn::Stream(hn::MulAdd(hn::Set(d, 3.0F), hn::Load(d, c + i), hn::Load(d, b + i)), d, a + i);
      }
      for (; i < end; ++i) a[i] = b[i] + 3.0F * c[i];
      hwy::FlushStream();
    });
  };
  const auto ordinary = [=] { sweep(n, [=](std::int64_t i) { a[i] = b[i] + 3.0F * c[i]; }); };
  return {"triad, streaming stores", n * 12, streaming, ordinary};
}

inline Case adamw_case(const Tensors& tensors, Stream& stream, bool with_parameter) {
  const std::int64_t n = tensors.elements;
  const Optimizer& adamw = find_optimizer("adamw");
  auto kernel = [&tensors, &stream, &adamw, n, with_parameter] {
    OptimizerScalars scalars =
        optimizer_scalars(adamw, hyperparameter_values(adamw), /*learning_rate=*/1e-6, /*step=*/1);
    float gradient_scale = 1.0F;
    const std::array<TensorView, 2> states{tensors.floats(1), tensors.floats(2)};
    const OptimizerSegment all{0, n, 0.1F};
    cpu_kernels().optimizer_step(
        {.optimizer = &adamw,
         .master = tensors.floats(0),
         .gradient = tensors.floats(3),
         .states = states,
         .parameter = with_parameter ? tensors.halves(4) : TensorView(),
         .segments = std::span(&all, 1),
         .scalars = TensorView(scalars.data(), DType::kFloat32, Shape{kOptimizerScalars}),
         .gradient_scale = TensorView(&gradient_scale, DType::kFloat32, Shape{1})},
        stream);
  };
  auto floor = [&tensors, n, with_parameter] {
    float* const p = tensors.data(0);
    float* const m = tensors.data(1);
    float* const v = tensors.data(2);
    const float* const g = tensors.data(3);
    auto* const out = reinterpret_cast<std::uint16_t*>(tensors.data(4));
    const auto update = [=](std::int64_t i) {
      p[i] += g[i];
      m[i] += g[i];
      v[i] += g[i];
    };
    if (!with_parameter) return sweep(n, update);
    sweep(n, [=](std::int64_t i) {
      update(i);
      out[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(p[i]) >> 16);
    });
  };
  return {with_parameter ? "adamw, bf16 parameter out" : "adamw", n * (with_parameter ? 30 : 28),
          kernel, floor};
}

}  // namespace tessera::bench
