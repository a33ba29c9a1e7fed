#include <algorithm>
#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/exact_accumulator_cuda.h"
#include "exact_sum_arguments.h"
#include "simt.h"

// exact_sum: every thread adds its values to words in shared memory, a block adds those to the
// result. Integers, so in any order; a micro-batch has some 10^4 losses.
// loss_scale, step_results: one thread, a few numbers.

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMostBlocks = 256;

__global__ void __launch_bounds__(kThreads)
    add_values(const float* x, std::int64_t* words, std::int64_t n) {
  SIMT_SHARED(ExactWords, sum);
  clear_words<kThreads>(sum);
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    add_term(sum, static_cast<double>(x[i]));
  }
  add_words<kThreads>(sum, words);
}

__global__ void __launch_bounds__(32) scale_of_count(const std::int64_t* count, float* scale) {
  if (threadIdx.x != 0) return;
  *scale = *count > 0 ? static_cast<float>(1.0 / static_cast<double>(*count)) : 0.0F;
}

/// StepResultsArgs as the device takes it.
struct StepResults {
  const std::int64_t *losses, *squares;
  double clip_norm;
  double* results;  // (2)
  float* clip_factor;
};

__global__ void __launch_bounds__(64) finish_step(const StepResults a) {
  if (threadIdx.x == 32) a.results[0] = rounded(a.losses);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(rounded(a.squares));
  a.results[1] = norm;
  const double factor = a.clip_norm > 0.0 ? a.clip_norm / (norm + 1e-6) : 1.0;
  *a.clip_factor = factor >= 1.0 ? 1.0F : static_cast<float>(factor);
}

}  // namespace

void exact_sum(const ExactSumArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t n = args.x.numel();
  if (n == 0) return;
  simt::launch(add_values, std::min(blocks_for(n, kThreads), kMostBlocks), kThreads, 0,
               handle(stream), args.x.as<float>(), args.words.as<std::int64_t>(), n);
}

void loss_scale(const LossScaleArgs& args, Stream& stream) {
  simt::launch(scale_of_count, 1, 32, 0, handle(stream), args.count.as<std::int64_t>(),
               args.scale.as<float>());
}

void step_results(const StepResultsArgs& args, Stream& stream) {
  check_arguments(args);
  const StepResults results{.losses = args.losses.as<std::int64_t>(),
                            .squares = args.squares.as<std::int64_t>(),
                            .clip_norm = args.clip_norm,
                            .results = args.results.as<double>(),
                            .clip_factor = args.clip_factor.as<float>()};
  simt::launch(finish_step, 1, 64, 0, handle(stream), results);
}

}  // namespace tessera::cuda
