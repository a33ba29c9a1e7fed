#include <algorithm>
#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_launch.h"
#include "cuda/exact_accumulator_cuda.h"
#include "exact_sum_arguments.h"
#include "simt.h"

// exact_sum: every thread adds its values to words in shared memory, a block adds those to the
// result. Integers, so in any order; a micro-batch has some 10^4 losses.
// loss_scale, step_results, update_loss_scaler: one thread, a few numbers.
// find_non_finite: reads x once where there is such an element at all; a minimum of places, in any
// order.

namespace tessera::cuda {
namespace {

constexpr int kSumsThreads = 256;
constexpr unsigned kMostSumsBlocks = 256;

__global__ void __launch_bounds__(kSumsThreads)
    add_values(const float* x, std::int64_t* words, std::int64_t n) {
  SIMT_SHARED(ExactWords, sum);
  clear_words<kSumsThreads>(sum);
  const std::int64_t stride = std::int64_t{gridDim.x} * kSumsThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kSumsThreads + threadIdx.x; i < n; i += stride) {
    add_term(sum, static_cast<double>(x[i]));
  }
  add_words<kSumsThreads>(sum, words);
}

/// `scaler` is null without loss scaling.
__global__ void __launch_bounds__(32)
    scale_of_count(const std::int64_t* count, float* scale, std::int64_t* scaler) {
  if (threadIdx.x != 0) return;
  const float mean = *count > 0 ? static_cast<float>(1.0 / static_cast<double>(*count)) : 0.0F;
  *scale = scaler != nullptr ? mean * scale_of(scaler) : mean;
  if (scaler != nullptr) scaler[kFirstBadWord] = kNoElement;
}

/// StepResultsArgs as the device takes it.
struct StepResults {
  const std::int64_t *losses, *squares;
  double clip_norm;
  double* results;  // (2)
  float* clip_factor;
  const std::int64_t* scaler;  // (kLossScalerWords); null: no loss scaling
};

__global__ void __launch_bounds__(64) finish_step(const StepResults a) {
  if (threadIdx.x == 32) a.results[0] = rounded(a.losses);
  if (threadIdx.x != 0) return;
  const float scale = a.scaler != nullptr ? scale_of(a.scaler) : 1.0F;
  const double norm = sqrt(rounded(a.squares)) / static_cast<double>(scale);
  a.results[1] = norm;
  const double factor = a.clip_norm > 0.0 ? a.clip_norm / (norm + 1e-6) : 1.0;
  *a.clip_factor = unscaled_clip_factor(factor >= 1.0 ? 1.0F : static_cast<float>(factor), scale);
}

template <typename T>
__global__ void __launch_bounds__(kSumsThreads)
    find_bad(const T* x, std::int64_t n, const std::int64_t* squares, std::int64_t first_index,
             std::int64_t* scaler) {
  if (!has_non_finite(squares)) return;
  const std::int64_t stride = std::int64_t{gridDim.x} * kSumsThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kSumsThreads + threadIdx.x; i < n; i += stride) {
    const float value = simt::to_float(x[i]);
    if (value - value == 0.0F) continue;  // finite
    // Places are not negative: as unsigned numbers they have the same order.
    atomicMin(reinterpret_cast<ExactWord*>(scaler) + kFirstBadWord,
              static_cast<ExactWord>(first_index + i));
    return;  // this thread's others come later
  }
}

/// UpdateLossScalerArgs as the device takes it.
struct ScalerUpdate {
  LossScalerRule rule;
  const std::int64_t* squares;
  std::int64_t* scaler;     // (kLossScalerWords)
  const float* candidates;  // (rows, kOptimizerScalars)
  std::int64_t rows;
  const std::int64_t* base;
  float* scalars;  // (kOptimizerScalars)
};

__global__ void __launch_bounds__(32) judge_step(const ScalerUpdate a) {
  if (threadIdx.x != 0) return;
  const std::int64_t row = candidate_row(a.scaler, *a.base, a.rows);
  for (int i = 0; i < kOptimizerScalars; ++i) {
    a.scalars[i] = a.candidates[row * kOptimizerScalars + i];
  }
  update_words(a.rule, has_non_finite(a.squares), a.scaler);
}

}  // namespace

void exact_sum(const ExactSumArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t n = args.x.numel();
  if (n == 0) return;
  simt::launch(add_values, std::min(blocks_for(n, kSumsThreads), kMostSumsBlocks), kSumsThreads, 0,
               handle(stream), args.x.as<float>(), args.words.as<std::int64_t>(), n);
}

void loss_scale(const LossScaleArgs& args, Stream& stream) {
  check_arguments(args);
  simt::launch(scale_of_count, 1, 32, 0, handle(stream), args.count.as<std::int64_t>(),
               args.scale.as<float>(), device_data<std::int64_t>(args.scaler));
}

void step_results(const StepResultsArgs& args, Stream& stream) {
  check_arguments(args);
  const StepResults results{.losses = args.losses.as<std::int64_t>(),
                            .squares = args.squares.as<std::int64_t>(),
                            .clip_norm = args.clip_norm,
                            .results = args.results.as<double>(),
                            .clip_factor = args.clip_factor.as<float>(),
                            .scaler = device_data<const std::int64_t>(args.scaler)};
  simt::launch(finish_step, 1, 64, 0, handle(stream), results);
}

void find_non_finite(const FindNonFiniteArgs& args, Stream& stream) {
  check_arguments(args);
  const std::int64_t n = args.x.numel();
  if (n == 0) return;
  with_element_type("find_non_finite", args.x.dtype, [&]<typename T>(ElementType<T>) {
    simt::launch(find_bad<T>, std::min(blocks_for(n, kSumsThreads), kMostSumsBlocks), kSumsThreads,
                 0, handle(stream), device_data<const T>(args.x), n,
                 args.squares.as<std::int64_t>(), args.first_index, args.scaler.as<std::int64_t>());
  });
}

void update_loss_scaler(const UpdateLossScalerArgs& args, Stream& stream) {
  check_arguments(args);
  const ScalerUpdate update{.rule = args.rule,
                            .squares = args.squares.as<std::int64_t>(),
                            .scaler = args.scaler.as<std::int64_t>(),
                            .candidates = args.candidates.as<float>(),
                            .rows = args.candidates.numel() / kOptimizerScalars,
                            .base = args.base.as<std::int64_t>(),
                            .scalars = args.scalars.as<float>()};
  simt::launch(judge_step, 1, 32, 0, handle(stream), update);
}

}  // namespace tessera::cuda
