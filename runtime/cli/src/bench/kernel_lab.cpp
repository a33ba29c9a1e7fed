#include "bench/kernel_cases.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/rank_clock.h"
#include "tessera/core/error.h"
#include "tessera/core/thread_team.h"

namespace tessera::bench {
namespace {

constexpr int kLimitRounds = 5;
/// A round of a limit lasts about so long, and that of a GEMM one call at least.
constexpr double kLimitSeconds = 2e-3;
constexpr std::int64_t kLeastLimitBytes = 1 << 16;

/// Calls loop(begin, end) on equal parts of [0, numel), each on a thread of the stream's team. All
/// but the last are multiples of 16.
template <typename Loop>
void on_parts(std::int64_t numel, const Loop& loop) {
  const int threads = team_threads();
  on_team(threads, [&](std::int64_t thread) {
    const std::int64_t begin = numel / 16 * thread / threads * 16;
    loop(begin, thread + 1 == threads ? numel : numel / 16 * (thread + 1) / threads * 16);
  });
}

/// a = b + 3 c over `numel` elements.
void triad(float* a, const float* b, const float* c, std::int64_t numel) {
  on_parts(numel, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0F * c[i];
  });
}

/// a = 0.999 a: unlike the others it fetches no lines only to overwrite them.
void update(float* a, std::int64_t numel) {
  on_parts(numel, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) a[i] *= 0.999F;
  });
}

/// a = 1 by ordinary stores, which fetch a line before they write to it.
void fill(float* a, std::int64_t numel) {
  on_parts(numel, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) a[i] = 1.0F;
  });
}

#ifdef __SSE2__
/// a = 1 by stores around the cache. `a` is aligned to 16 bytes.
void fill_around_cache(float* a, std::int64_t numel) {
  on_parts(numel, [=](std::int64_t begin, std::int64_t end) {
    const __m128 ones = _mm_set1_ps(1.0F);
    for (std::int64_t i = begin; i + 4 <= end; i += 4) _mm_stream_ps(a + i, ones);
    _mm_sfence();
  });
}
#endif

void parallel_memcpy(float* to, const float* from, std::int64_t numel) {
  on_parts(numel, [=](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

}  // namespace

double bytes_of(std::initializer_list<TensorView> views) {
  double sum = 0.0;
  for (const TensorView& view : views) {
    if (view) sum += static_cast<double>(view.bytes());
  }
  return sum;
}

KernelLab::KernelLab(std::unique_ptr<Device> device, int threads, const KernelSizes& sizes)
    : device_(std::move(device)),
      threads_(threads),
      sizes_(sizes),
      kernels_(kernels_for(*device_)),
      memory_(*device_),
      stream_(device_->create_stream({.name = "kernels", .threads = threads})) {}

Tensor KernelLab::empty(const Shape& shape, DType dtype) {
  return Tensor::empty(memory_, shape, dtype, MemoryCategory::kWorkspace, "an operand");
}

Tensor KernelLab::random(const Shape& shape, DType dtype, float stddev) {
  const Tensor result = empty(shape, dtype);
  const Tensor wide = dtype == DType::kFloat32 ? result : empty(shape, DType::kFloat32);
  const RandomKey key{1, ++fillings_};
  seconds(
      [&](Stream& stream) {
        kernels_.fill_normal({.dst = wide.view().flat(), .stddev = stddev, .key = key}, stream);
        if (dtype != DType::kFloat32) {
          kernels_.cast({.src = wide.view().flat(), .dst = result.view().flat()}, stream);
        }
      },
      1);
  return result;
}

Tensor KernelLab::constant(const Shape& shape, DType dtype, float value) {
  const Tensor result = empty(shape, dtype);
  seconds(
      [&](Stream& stream) { kernels_.fill({.dst = result.view().flat(), .value = value}, stream); },
      1);
  return result;
}

template <typename T, typename Value>
Tensor KernelLab::filled(const Shape& shape, DType dtype, const Value& value) {
  const Tensor result = empty(shape, dtype);
  const auto bytes = static_cast<std::size_t>(result.bytes());
  auto* const host = static_cast<T*>(device_->allocate_host(bytes));
  for (std::int64_t i = 0; i < result.numel(); ++i) host[i] = value(i);
  stream_->copy(result.view().data, host, bytes);
  stream_->synchronize();
  device_->deallocate_host(host, bytes);
  return result;
}

Tensor KernelLab::tokens(const Shape& shape, std::int32_t limit) {
  constexpr std::int64_t kStride = 31337;  // prime
  return filled<std::int32_t>(shape, DType::kInt32, [limit](std::int64_t i) {
    return static_cast<std::int32_t>(i * kStride % limit);
  });
}

Tensor KernelLab::integers(std::int64_t numel, std::int64_t value) {
  return filled<std::int64_t>(Shape{numel}, DType::kInt64, [value](std::int64_t) { return value; });
}

std::vector<std::vector<std::int64_t>> packed_documents(std::int64_t sequences,
                                                        std::int64_t length) {
  constexpr std::int64_t kShortest = 200, kLongest = 1000;
  constexpr std::int64_t kStride = 337;  // prime
  std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(sequences));
  std::int64_t number = 0;
  for (std::vector<std::int64_t>& documents : all) {
    for (std::int64_t left = length; left > 0; left -= documents.back(), ++number) {
      const std::int64_t wanted = kShortest + number * kStride % (kLongest - kShortest + 1);
      documents.push_back(std::min(left, wanted));
    }
  }
  return all;
}

Tensor KernelLab::document_starts(const std::vector<std::vector<std::int64_t>>& documents) {
  std::vector<std::int32_t> starts;
  for (const std::vector<std::int64_t>& of_sequence : documents) {
    std::int64_t begin = 0;
    for (const std::int64_t length : of_sequence) {
      starts.insert(starts.end(), static_cast<std::size_t>(length),
                    static_cast<std::int32_t>(begin));
      begin += length;
    }
  }
  const auto sequences = static_cast<std::int64_t>(documents.size());
  const Shape shape{sequences, static_cast<std::int64_t>(starts.size()) / sequences};
  return filled<std::int32_t>(shape, DType::kInt32,
                              [&](std::int64_t i) { return starts[static_cast<std::size_t>(i)]; });
}

double KernelLab::seconds(const std::function<void(Stream&)>& kernel, int calls) {
  double begin = now(), end = 0.0;
  const auto all = [&] {
    if (!on_gpu()) begin = now();
    for (int i = 0; i < calls; ++i) kernel(*stream_);
    if (!on_gpu()) end = now();
  };
  stream_->submit({.name = "kernel"}, all);
  stream_->synchronize();
  if (on_gpu()) end = now();
  return end - begin;
}

double KernelLab::best_seconds(const std::function<void(Stream&)>& work) {
  seconds(work, 1);
  const double once = std::max(seconds(work, 1), 1e-9);
  const int calls = static_cast<int>(std::clamp(kLimitSeconds / once, 1.0, 10000.0));
  double best = seconds(work, calls) / calls;
  for (int round = 1; round < kLimitRounds; ++round) {
    best = std::min(best, seconds(work, calls) / calls);
  }
  return best;
}

double KernelLab::measured_memory_limit(std::int64_t bytes) {
  const std::int64_t numel = bytes / 3 / static_cast<std::int64_t>(sizeof(float));
  const Tensor a = constant(Shape{numel}, DType::kFloat32, 1.0F);
  const Tensor b = constant(Shape{numel}, DType::kFloat32, 1.0F);
  const Tensor c = constant(Shape{numel}, DType::kFloat32, 1.0F);
  if (on_gpu()) {
    const double copy = best_seconds([&](Stream& stream) {
      stream.copy(a.view().data, b.view().data, static_cast<std::size_t>(a.bytes()));
    });
    return 2.0 * static_cast<double>(a.bytes()) / copy;
  }
  const double of_triad =
      best_seconds([&](Stream&) { triad(a.as<float>(), b.as<float>(), c.as<float>(), numel); });
  const double of_copy =
      best_seconds([&](Stream&) { parallel_memcpy(a.as<float>(), b.as<float>(), numel); });
  const double of_update = best_seconds([&](Stream&) { update(a.as<float>(), numel); });
  const auto each = static_cast<double>(a.bytes());
  return std::max({3.0 * each / of_triad, 2.0 * each / of_copy, 2.0 * each / of_update});
}

double KernelLab::measured_store_limit(std::int64_t bytes) {
  const std::int64_t numel = bytes / static_cast<std::int64_t>(sizeof(float));
  const Tensor a = constant(Shape{numel}, DType::kFloat32, 1.0F);
  double best = best_seconds([&](Stream&) { fill(a.as<float>(), numel); });
#ifdef __SSE2__
  best = std::min(best, best_seconds([&](Stream&) { fill_around_cache(a.as<float>(), numel); }));
#endif
  return static_cast<double>(a.bytes()) / best;
}

double KernelLab::memory_limit(double bytes, double written) {
  const double enough = std::max(bytes, static_cast<double>(kLeastLimitBytes));
  const int power = static_cast<int>(std::lround(std::log2(enough)));
  const std::int64_t touched = std::int64_t{1} << power;
  double& limit = memory_limits_[power];
  if (limit == 0.0) limit = measured_memory_limit(touched);
  if (written == 0.0 || on_gpu()) return limit;
  double& stores = store_limits_[power];
  if (stores == 0.0) stores = measured_store_limit(touched);
  return std::min(limit, stores * bytes / written);
}

double KernelLab::gemm_limit(DType dtype) {
  double& limit = gemm_limits_[dtype];
  if (limit > 0.0) return limit;
  const std::int64_t side = on_gpu() ? 8192 : 2048;
  const Tensor a = random(Shape{side, side}, dtype);
  const Tensor b = random(Shape{side, side}, dtype);
  const Tensor c = random(Shape{side, side}, dtype);
  const double best =
      best_seconds([&](Stream& stream) { kernels_.gemm({.a = a, .b = b, .c = c}, stream); });
  limit = 2.0 * std::pow(static_cast<double>(side), 3.0) / best;
  return limit;
}

}  // namespace tessera::bench
