#include <bit>
#include <cmath>

#include "cpu/cpu_kernels.h"
#include "cpu/exact_accumulator.h"
#include "cpu/parallel.h"
#include "exact_sum_arguments.h"

// exact_sum: one pass over the losses of a micro-batch, about 2 ns each; in any order.
// loss_scale, step_results: a few numbers.
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
  const std::int64_t count = *args.count.as<std::int64_t>();
  *args.scale.as<float>() = count > 0 ? static_cast<float>(1.0 / static_cast<double>(count)) : 0.0F;
}

void step_results(const StepResultsArgs& args, Stream&) {
  check_arguments(args);
  const auto rounded = [](const TensorView& words) {
    return std::bit_cast<double>(exact_sum_bits(words.as<std::int64_t>()));
  };
  const double norm = std::sqrt(rounded(args.squares));
  args.results.as<double>()[0] = rounded(args.losses);
  args.results.as<double>()[1] = norm;
  const double factor = args.clip_norm > 0.0 ? args.clip_norm / (norm + 1e-6) : 1.0;
  *args.clip_factor.as<float>() = factor >= 1.0 ? 1.0F : static_cast<float>(factor);
}

}  // namespace tessera::cpu
