#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "cpu/cpu_kernels.h"
#include "cpu/exact_accumulator.h"
#include "cpu/float_types.h"
#include "cpu/parallel.h"
#include "exact_sum_arguments.h"

// exact_sum: one pass over the losses of a micro-batch, about 2 ns each; in any order.
// loss_scale, step_results, update_loss_scaler: a few numbers.
// find_non_finite: x once, where there is such an element at all.
namespace tessera::cpu {

void exact_sum(const ExactSumArgs& args, Stream&) {
  check_arguments(args);
  const float* const x = args.x.as<float>();
  std::int64_t* const words = args.words.as<std::int64_t>();
  parallel_for(args.x.numel(), 8192, [&](std::int64_t begin, std::int64_t end) {
    ExactAccumulator sum;
    for (std::int64_t i = begin; i < end; ++i) sum.add(static_cast<double>(x[i]));
    sum.add_to(words);
  });
}

void loss_scale(const LossScaleArgs& args, Stream&) {
  check_arguments(args);
  const std::int64_t count = *args.count.as<std::int64_t>();
  float& scale = *args.scale.as<float>();
  scale = count > 0 ? static_cast<float>(1.0 / static_cast<double>(count)) : 0.0F;
  if (!args.scaler) return;
  std::int64_t* const scaler = args.scaler.as<std::int64_t>();
  scale *= scale_of(scaler);
  scaler[kFirstBadWord] = kNoElement;
}

void step_results(const StepResultsArgs& args, Stream&) {
  check_arguments(args);
  const auto rounded = [](const TensorView& words) {
    return std::bit_cast<double>(exact_sum_bits(words.as<std::int64_t>()));
  };
  const float scale = args.scaler ? scale_of(args.scaler.as<std::int64_t>()) : 1.0F;
  const double norm = std::sqrt(rounded(args.squares)) / static_cast<double>(scale);
  args.results.as<double>()[0] = rounded(args.losses);
  args.results.as<double>()[1] = norm;
  const double factor = args.clip_norm > 0.0 ? args.clip_norm / (norm + 1e-6) : 1.0;
  *args.clip_factor.as<float>() =
      unscaled_clip_factor(factor >= 1.0 ? 1.0F : static_cast<float>(factor), scale);
}

void find_non_finite(const FindNonFiniteArgs& args, Stream&) {
  check_arguments(args);
  if (!has_non_finite(args.squares.as<std::int64_t>())) return;
  std::int64_t& first = args.scaler.as<std::int64_t>()[kFirstBadWord];
  with_float_type(args.x.dtype, [&]<typename T>(T) {
    const T* const x = args.x.as<T>();
    parallel_for(args.x.numel(), 65536, [&](std::int64_t begin, std::int64_t end) {
      const T* const found = std::find_if(
          x + begin, x + end, [](auto value) { return !std::isfinite(static_cast<float>(value)); });
      if (found == x + end) return;
      const std::int64_t place = args.first_index + (found - x);
      const std::atomic_ref<std::int64_t> shared(first);
      std::int64_t known = shared.load();
      while (place < known && !shared.compare_exchange_weak(known, place)) {
      }
    });
  });
}

void update_loss_scaler(const UpdateLossScalerArgs& args, Stream&) {
  check_arguments(args);
  std::int64_t* const scaler = args.scaler.as<std::int64_t>();
  const std::int64_t row = candidate_row(scaler, *args.base.as<std::int64_t>(),
                                         args.candidates.numel() / kOptimizerScalars);
  std::copy_n(args.candidates.as<float>() + row * kOptimizerScalars, kOptimizerScalars,
              args.scalars.as<float>());
  update_words(args.rule, has_non_finite(args.squares.as<std::int64_t>()), scaler);
}

}  // namespace tessera::cpu
