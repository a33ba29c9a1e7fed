#include <gtest/gtest.h>

#include "cuda/cuda_run.h"
#include "tessera/model/generate.h"
#include "tessera/model/gpt_generation.h"
#include "tessera/trainer/session.h"

// Texts that ranks on an emulated GPU make up.
namespace tessera::cuda_generation_test {
namespace {

std::vector<std::int32_t> text_of(const TrainerOptions& given) {
  TrainerOptions options = given;
  options.evaluation_samples = options.ranks;
  GptGeneration gpt({.vocab_size = test::kVocabulary,
                     .context_length = test::kLength,
                     .layers = 2,
                     .heads = 2,
                     .width = 16},
                    test::kLength);
  Session session(gpt.model(), gpt, options, &gpt);
  return generate({.tokens = 6, .context_length = gpt.window(), .temperature = 1.0F, .seed = 3},
                  std::vector<std::int32_t>{2, 7, 1}, [&](std::span<const std::int32_t> context) {
                    gpt.set_context(context);
                    session.evaluate();
                    return gpt.logits();
                  });
}

TEST(CudaGeneration, GivesTheTextOfTheCpuForEveryStrategy) {
  TrainerOptions cpu = test::cuda_options("no_shard", 1);
  cpu.device = DeviceChoice::kCpu;
  const std::vector<std::int32_t> text = text_of(cpu);
  EXPECT_EQ(text_of(test::cuda_options("no_shard", 1)), text);
  EXPECT_EQ(text_of(test::cuda_options("full_shard", 2)), text);
  EXPECT_EQ(text_of(test::cuda_options("hybrid_shard", 4)), text);
}

}  // namespace
}  // namespace tessera::cuda_generation_test
