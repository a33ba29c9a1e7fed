#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt.h"
#include "tessera/trainer/trainer.h"

// A short run that tests save and resume, at any number of ranks, in one process or several.
namespace tessera::test {

inline Model checkpointed_gpt() {
  return make_gpt({.vocab_size = 50,
                   .context_length = 6,
                   .layers = 2,
                   .heads = 2,
                   .width = 12,
                   .dropout = 0.1F});
}

inline RandomTokens checkpointed_data() { return {6, 50, true}; }

/// Runs of as many samples per step whose plans add up gradients alike give the same bits.
struct Variant {
  std::string strategy = "full_shard";
  int ranks = 1;
  int samples_per_step = 12;  ///< a multiple of the ranks
  DType precision = DType::kFloat32;
  bool stochastic_rounding = false;
  std::string optimizer = "adamw";
  WrapPolicy wrap{};
  int prefetch = 1;
};

inline std::string describe(const Variant& variant) {
  return concat(variant.strategy, " on ", variant.ranks, ", ", variant.samples_per_step,
                " samples, ", to_string(variant.precision), ", wrap ", to_string(variant.wrap));
}

inline TrainerOptions options_of(const Variant& variant, std::int64_t steps) {
  TrainerOptions options;
  options.strategy = variant.strategy;
  options.ranks = variant.ranks;
  options.steps = steps;
  options.micro_batch = 1;
  options.accumulate = variant.samples_per_step / variant.ranks;
  options.precision = variant.precision;
  options.optimizer.name = variant.optimizer;
  options.optimizer.stochastic_rounding = variant.stochastic_rounding;
  options.optimizer.clip_norm = 0.5;
  options.learning_rate.peak = 0.01;
  options.learning_rate.warmup_steps = 2;
  options.wrap = variant.wrap;
  options.policy.prefetch_forward = options.policy.prefetch_backward = variant.prefetch;
  options.threads_per_rank = 1;
  options.timeout = std::chrono::seconds(60);
  return options;
}

/// What must be the same.
struct Numbers {
  std::vector<double> losses, norms;
  std::string sha256;
  bool operator==(const Numbers&) const = default;
  friend void PrintTo(const Numbers& numbers, std::ostream* out) {
    for (const double loss : numbers.losses) *out << loss << ", ";
    *out << numbers.sha256;
  }
};

/// Trains in this process. The numbers are those of the steps after `from`.
inline Numbers train_numbers(const TrainerOptions& options, std::int64_t from = 0) {
  const Model model = checkpointed_gpt();
  const RandomTokens data = checkpointed_data();
  Numbers numbers;
  const Trainer trainer(model, data, options);
  numbers.sha256 = trainer
                       .train([&](const StepRecord& record) {
                         if (record.step <= from) return true;
                         numbers.losses.push_back(record.loss);
                         numbers.norms.push_back(record.gradient_norm);
                         return true;
                       })
                       .parameters_sha256;
  return numbers;
}

}  // namespace tessera::test
