#pragma once

// Else Highway 1.0 refuses Sapphire Rapids as a baseline.
#define HWY_COMPILE_ONLY_STATIC
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include <omp.h>

#include <array>
#include <cstdint>
#include <functional>

#include "bench/kernel_cases.h"

// Loops that move memory, beside which memory-bound kernels are held: for sources that are compiled
// for the processor of the machine that builds them.
namespace tessera::bench {

/// The tensors of the loops, in memory as kernels have it.
class Tensors {
 public:
  Tensors(KernelLab& lab, std::int64_t n) : elements(n) {
    for (Tensor& tensor : tensors_) tensor = lab.constant(Shape{n}, DType::kFloat32, 1e-3F);
  }
  float* data(std::size_t t) const { return tensors_[t].as<float>(); }
  std::uint32_t* words(std::size_t t) const { return reinterpret_cast<std::uint32_t*>(data(t)); }
  std::uint16_t* halves(std::size_t t) const { return reinterpret_cast<std::uint16_t*>(data(t)); }

  const std::int64_t elements;

 private:
  std::array<Tensor, 5> tensors_;
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

/// a = b + 3 c, with streaming stores and with ordinary ones.
struct Triad {
  double bytes;
  std::function<void()> streaming, ordinary;
};

inline Triad make_triad(const Tensors& tensors) {
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
  return {static_cast<double>(n) * 12, streaming, ordinary};
}

}  // namespace tessera::bench
