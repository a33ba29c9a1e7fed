#include <gmock/gmock.h>

#include "cuda/cuda_run.h"

// Steps on a GPU in fp8, whose products of codes are cuBLASLt's. Compiled twice, for an emulated
// GPU and for a real one.
namespace tessera::cuda_fp8_test {
namespace {

using test::counting_gpt;
using test::expect_same_bits;
using test::run;
using test::Trained;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TrainerOptions fp8_options(const std::string& strategy, int ranks) {
  TrainerOptions options = test::cuda_options(strategy, ranks);
  options.precision = DType::kBFloat16;
  options.fp8.enabled = true;
  options.micro_batch = 2;  // 16 rows, of which weight gradients take codes, too
  return options;
}

TEST(CudaFp8, StepsAreNearThoseOfTheCpuAndTheSameWithEveryStrategy) {
  const Model model = counting_gpt();
  TrainerOptions alone = fp8_options("no_shard", 1);
  alone.accumulate = 2;
  const Trained expected = run(model, alone);
  for (const char* const strategy : {"zero2", "full_shard"}) {
    for (const GatherFormat format : {GatherFormat::kE4M3, GatherFormat::kBf16}) {
      TrainerOptions sharded = fp8_options(strategy, 2);
      sharded.fp8.gather_format = format;
      const Trained trained = run(model, sharded);
      expect_same_bits(trained, expected);
      EXPECT_EQ(trained.summary.measured_memory, trained.summary.predicted_memory);
    }
  }
  alone.device = DeviceChoice::kCpu;
  const Trained on_cpu = run(model, alone);
  for (std::size_t i = 0; i < on_cpu.losses.size(); ++i) {
    EXPECT_NEAR(expected.losses[i], on_cpu.losses[i], 2e-2 * on_cpu.losses[i]) << i;
  }
}

TEST(CudaFp8, RecomputationChangesNoBit) {
  const Model model = counting_gpt(0.1F);
  const Trained expected = run(model, fp8_options("full_shard", 2));
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    TrainerOptions options = fp8_options("full_shard", 2);
    options.policy.recompute = recompute;
    const Trained trained = run(model, options);
    expect_same_bits(trained, expected);
    EXPECT_EQ(trained.summary.measured_memory, trained.summary.predicted_memory);
  }
}

TEST(CudaFp8, ANoteSaysWhichProductsAreOfDecodedOperands) {
  const auto notes = [](std::int64_t micro_batch, std::int64_t width) {
    const Model model = make_gpt({.vocab_size = test::kVocabulary,
                                  .context_length = test::kLength,
                                  .layers = 2,
                                  .heads = 2,
                                  .width = width});
    const test::CountingTokens data;
    TrainerOptions options = fp8_options("no_shard", 1);
    options.steps = 1;
    options.micro_batch = micro_batch;
    return test::notes_of(Trainer(model, data, options));
  };
  const auto rows =
      HasSubstr("a micro-batch has 8 rows of activations, which is no multiple of 16");
  const auto sides = HasSubstr("operands of 8 of 8 matrices in fp8 are decoded");
  EXPECT_THAT(notes(1, 16), AllOf(Contains(rows), Not(Contains(sides))));
  EXPECT_THAT(notes(2, 16), Not(AnyOf(Contains(rows), Contains(sides))));
  EXPECT_THAT(notes(2, 24), AllOf(Contains(sides), Not(Contains(rows))));
}

}  // namespace
}  // namespace tessera::cuda_fp8_test
