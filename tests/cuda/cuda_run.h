#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/model/gpt.h"
#include "tessera/trainer/trainer.h"

namespace tessera::test {

inline constexpr std::int64_t kLength = 8;
inline constexpr std::int64_t kVocabulary = 19;

/// Tokens that follow from the ones before.
class CountingTokens : public BatchSource {
 public:
  explicit CountingTokens(std::int64_t length = kLength) : length_(length) {}
  Shape input_shape(std::int64_t n) const override { return {n, length_}; }
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t n) const override { return {n, length_}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t s = 0; s < micro_batch; ++s) {
      for (std::int64_t i = 0; i < length_; ++i) {
        const auto token = [&](std::int64_t at) {
          return static_cast<std::int32_t>(((first + s) * 7 + at) % kVocabulary);
        };
        inputs.as<std::int32_t>()[s * length_ + i] = token(i);
        targets.as<std::int32_t>()[s * length_ + i] = token(i + 1);
      }
    }
    return micro_batch * length_;
  }

 private:
  std::int64_t length_;
};

inline Model counting_gpt(float dropout = 0.0F) {
  return make_gpt({.vocab_size = kVocabulary,
                   .context_length = kLength,
                   .layers = 2,
                   .heads = 2,
                   .width = 16,
                   .dropout = dropout});
}

/// A model whose attention cuDNN takes, in bf16 and with samples of kCudnnLength tokens.
inline constexpr std::int64_t kCudnnLength = 64;
inline Model cudnn_gpt() {
  return make_gpt({.vocab_size = kVocabulary,
                   .context_length = kCudnnLength,
                   .layers = 1,
                   .heads = 1,
                   .width = 64});
}

inline TrainerOptions cuda_options(const std::string& strategy, int ranks) {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = ranks;
  options.replicas = find_strategy(strategy).hybrid ? 2 : 0;
  options.steps = 4;
  options.micro_batch = 1;
  options.optimizer.clip_norm = 0.5;
  options.learning_rate = {.peak = 1e-2};
  options.threads_per_rank = 1;
  options.device = DeviceChoice::kCuda;
  options.group = GroupChoice::kThread;
  options.time_actions = false;
  return options;
}

/// All that a run computes, for comparing bits.
struct Trained {
  std::vector<double> losses, norms;
  std::string parameters;
  TrainingSummary summary;
};

inline Trained run(const Model& model, const TrainerOptions& options,
                   std::int64_t length = kLength) {
  const CountingTokens data(length);
  const Trainer trainer(model, data, options);
  Trained result;
  result.summary = trainer.train([&](const StepRecord& record) {
    result.losses.push_back(record.loss);
    result.norms.push_back(record.gradient_norm);
    return true;
  });
  result.parameters = result.summary.parameters_sha256;
  return result;
}

/// What a run tells its user.
inline std::vector<std::string> notes_of(const Trainer& trainer) {
  std::vector<std::string> notes;
  trainer.train({}, [&](const std::string& note) { notes.push_back(note); });
  return notes;
}

inline void expect_same_bits(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.parameters, b.parameters);
}

}  // namespace tessera::test
