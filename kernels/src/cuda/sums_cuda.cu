#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "simt.h"

// Small sums whose order is their contract, with the CPU's bits.
//
// sum: one thread adds, in fp64, what the others bring into shared memory (two buffers). Every
// addition waits for the one before: with some 10 cycles each, 32768 losses take about 0.2 ms, on
// one multiprocessor of many.
// loss_scale: a warp; integers may be added in any order.
// step_results: one block; a thread walks the additions of a unit, one after another, at the L2
// cache's latency each; then one thread adds the units and another the losses.

namespace tessera::cuda {
namespace {

constexpr int kAdder = 32;     // the first warp, of which one thread adds
constexpr int kLoaders = 256;  // eight loads by each fill a buffer
constexpr int kBuffer = 2048;
constexpr int kBatch = 16;  // values that the adding thread reads ahead of their additions

__global__ void __launch_bounds__(kAdder + kLoaders)
    sum_in_order(const float* x, double* out, std::int64_t n) {
  using Buffers = double[2][kBuffer];
  SIMT_SHARED(Buffers, buffers);
  const int loader = static_cast<int>(threadIdx.x) - kAdder;  // the adding warp's are negative
  // Zeros fill up the last buffer: a batch reads them, but does not add them.
  const auto load = [&](std::int64_t begin, double* buffer) {
    for (int i = loader; i < kBuffer; i += kLoaders) {
      buffer[i] = begin + i < n ? static_cast<double>(x[begin + i]) : 0.0;
    }
  };
  double total = 0.0;
  if (loader >= 0) load(0, buffers[0]);
  for (std::int64_t begin = 0; begin < n; begin += kBuffer) {
    __syncthreads();
    const int current = static_cast<int>(begin / kBuffer % 2);
    if (loader >= 0) {
      load(begin + kBuffer, buffers[1 - current]);
    } else if (threadIdx.x == 0) {
      const auto count = static_cast<int>(n - begin < kBuffer ? n - begin : kBuffer);
      for (int i = 0; i < count; i += kBatch) {
        double batch[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) batch[j] = buffers[current][i + j];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          if (i + j < count) total += batch[j];
        }
      }
    }
  }
  if (threadIdx.x == 0) *out = total;
}

__global__ void __launch_bounds__(32)
    scale_of_counts(const std::int64_t* counts, float* scale, std::int64_t n) {
  long long total = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += 32) total += counts[i];
  for (int width = 16; width > 0; width /= 2) total += __shfl_xor_sync(~0U, total, width);
  if (threadIdx.x == 0) {
    *scale = total > 0 ? static_cast<float>(1.0 / static_cast<double>(total)) : 0.0F;
  }
}

/// StepResultsArgs as the device takes it.
struct StepResults {
  double* values;
  const std::int32_t* additions;  // (rows, 3)
  const std::int32_t* units;      // (unit_count + 1)
  const std::int32_t* roots;      // (unit_count)
  std::int64_t unit_count, ranks, message, micro_steps;
  double clip_norm;
  double* results;  // (2)
  float* clip_factor;
};

__device__ double sum_of_losses(const StepResults& a) {
  double losses = 0.0;
  for (std::int64_t m = 0; m < a.micro_steps; ++m) {
#pragma unroll 8
    for (std::int64_t r = 0; r < a.ranks; ++r) losses += a.values[r * a.message + m];
  }
  return losses;
}

__device__ double sum_of_roots(const StepResults& a) {
  double squares = 0.0;
#pragma unroll 8
  for (std::int64_t u = 0; u < a.unit_count; ++u) {
    const std::int32_t root = a.roots[u];
    squares += root >= 0 ? a.values[root] : 0.0;  // adding 0 changes no sum of squares
  }
  return squares;
}

/// A thread per unit; at least two warps.
constexpr int kUnitThreads = 256;

__global__ void __launch_bounds__(kUnitThreads) finish_step(const StepResults a) {
  for (std::int64_t u = threadIdx.x; u < a.unit_count; u += kUnitThreads) {
    for (std::int64_t i = a.units[u]; i < a.units[u + 1]; ++i) {
      const std::int32_t* const row = a.additions + 3 * i;
      a.values[row[0]] = a.values[row[1]] + a.values[row[2]];
    }
  }
  __syncthreads();
  if (threadIdx.x == 32) a.results[0] = sum_of_losses(a);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum_of_roots(a));
  a.results[1] = norm;
  const double factor = a.clip_norm > 0.0 ? a.clip_norm / (norm + 1e-6) : 1.0;
  *a.clip_factor = factor >= 1.0 ? 1.0F : static_cast<float>(factor);
}

}  // namespace

void sum(const SumArgs& args, Stream& stream) {
  simt::launch(sum_in_order, 1, kAdder + kLoaders, 0, handle(stream), args.x.as<float>(),
               args.out.as<double>(), args.x.numel());
}

void loss_scale(const LossScaleArgs& args, Stream& stream) {
  simt::launch(scale_of_counts, 1, 32, 0, handle(stream), args.counts.as<std::int64_t>(),
               args.scale.as<float>(), args.counts.numel());
}

void step_results(const StepResultsArgs& args, Stream& stream) {
  const StepResults results{.values = args.values.as<double>(),
                            .additions = args.additions.as<std::int32_t>(),
                            .units = args.units.as<std::int32_t>(),
                            .roots = args.roots.as<std::int32_t>(),
                            .unit_count = args.roots.numel(),
                            .ranks = args.ranks,
                            .message = args.message,
                            .micro_steps = args.micro_steps,
                            .clip_norm = args.clip_norm,
                            .results = args.results.as<double>(),
                            .clip_factor = args.clip_factor.as<float>()};
  simt::launch(finish_step, 1, kUnitThreads, 0, handle(stream), results);
}

}  // namespace tessera::cuda
