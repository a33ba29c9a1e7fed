#include <gtest/gtest.h>

#include <cmath>

#include "cuda/cuda_run.h"
#include "tessera/model/gpt_scoring.h"
#include "tessera/trainer/session.h"

// Log-likelihoods of texts on an emulated GPU.
namespace tessera::cuda_scoring_test {
namespace {

std::vector<double> scores_of(TrainerOptions options) {
  options.forward = true;
  const GptScoring gpt({.vocab_size = test::kVocabulary,
                        .context_length = test::kLength,
                        .layers = 2,
                        .heads = 2,
                        .width = 16},
                       test::kLength);
  Session session(gpt.model(), gpt, options);
  const std::vector<ScoredText> texts{
      {{2, 7, 1, 8}, 2}, {{3, 1}, 1}, {{5, 6, 5, 4, 3, 2, 1, 0, 9}, 8}};
  return gpt.log_likelihoods(texts, [&](const TensorView& inputs, const TensorView& targets) {
    return session.forward(inputs, targets).values;
  });
}

TEST(CudaScoring, GivesTheScoresOfTheCpuForEveryStrategy) {
  TrainerOptions cpu = test::cuda_options("no_shard", 1);
  cpu.device = DeviceChoice::kCpu;
  const std::vector<double> expected = scores_of(cpu);
  const std::vector<double> scores = scores_of(test::cuda_options("no_shard", 1));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(scores[i], expected[i], 1e-5 * std::abs(expected[i]));
    EXPECT_LT(expected[i], -1.0);
  }
  EXPECT_EQ(scores_of(test::cuda_options("full_shard", 2)), scores);
  EXPECT_EQ(scores_of(test::cuda_options("hybrid_shard", 4)), scores);
}

}  // namespace
}  // namespace tessera::cuda_scoring_test
