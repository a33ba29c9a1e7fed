#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "cuda/cuda_run.h"
#include "tessera/core/error.h"

// Steps in fp16 on a GPU, whose first ones overflow: with which bits, and that all ranks skip them
// alike. Compiled twice, for an emulated GPU and for a real one.
namespace tessera::cuda_fp16_test {
namespace {

using test::counting_gpt;
using test::cuda_options;
using test::Trained;

constexpr int kRanks = 4;

/// Of as many ranks with a sample each, one alone has targets: another's gradients are zero.
class OneRankLearns : public test::CountingTokens {
 public:
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    CountingTokens::fill(first, micro_batch, inputs, targets);
    std::int64_t counted = 0;
    for (std::int64_t s = 0; s < micro_batch; ++s) {
      if ((first + s) % kRanks == 2) {
        counted += test::kLength;
        continue;
      }
      for (std::int64_t i = 0; i < test::kLength; ++i) {
        targets.as<std::int32_t>()[s * test::kLength + i] = -1;
      }
    }
    return counted;
  }
};

/// A gradient of a logit is 2^20 / 8 with it, and the first layer norms multiply it; fp16 ends at
/// 2^16. So the first steps are skipped.
TrainerOptions fp16_options(const std::string& strategy, int ranks) {
  TrainerOptions options = cuda_options(strategy, ranks);
  options.precision = DType::kFloat16;
  options.loss_scale.initial = 0x1p20;
  options.steps = 5;
  return options;
}

/// All that a run computes, of which norms may be no numbers.
struct Steps {
  std::vector<std::uint64_t> losses, norms;  // their bits
  std::vector<double> scales;
  std::vector<bool> skipped;
  std::vector<double> loss_values;
  TrainingSummary summary;
};

Steps train(const Model& model, const BatchSource& data, const TrainerOptions& options) {
  Steps steps;
  steps.summary = Trainer(model, data, options).train([&](const StepRecord& record) {
    steps.losses.push_back(std::bit_cast<std::uint64_t>(record.loss));
    steps.norms.push_back(std::bit_cast<std::uint64_t>(record.gradient_norm));
    steps.scales.push_back(record.loss_scale.value_or(0.0));
    steps.skipped.push_back(record.skipped);
    steps.loss_values.push_back(record.loss);
    return true;
  });
  return steps;
}

void expect_same(const Steps& a, const Steps& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.scales, b.scales);
  EXPECT_EQ(a.skipped, b.skipped);
  EXPECT_EQ(a.summary.parameters_sha256, b.summary.parameters_sha256);
}

void expect_as_planned(const TrainingSummary& summary) {
  EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
  EXPECT_EQ(summary.measured_host_memory, summary.predicted_host_memory);
  for (const Traffic& counted : summary.counted_traffic) {
    EXPECT_EQ(counted, summary.predicted_traffic);
  }
}

const std::vector<bool> kThreeSkipped{true, true, true, false, false};

TEST(CudaFp16, AnOverflowOnOneRankIsSkippedByAllUnderEveryStrategy) {
  const Model model = counting_gpt();
  const OneRankLearns data;
  const Steps reference = train(model, data, fp16_options("no_shard", kRanks));
  EXPECT_EQ(reference.skipped, kThreeSkipped);
  EXPECT_THAT(reference.scales, testing::ElementsAre(0x1p20, 0x1p19, 0x1p18, 0x1p17, 0x1p17));
  for (const char* strategy : {"zero1", "full_shard", "hybrid_shard"}) {
    SCOPED_TRACE(strategy);
    const Steps sharded = train(model, data, fp16_options(strategy, kRanks));
    expect_same(sharded, reference);
    expect_as_planned(sharded.summary);
  }
}

TEST(CudaFp16, AStepThatIsSkippedLeavesParametersAsTheyAre) {
  const Model model = counting_gpt();
  const test::CountingTokens data;
  const auto steps_of = [&](int steps) {
    TrainerOptions options = fp16_options("full_shard", 1);
    options.loss_scale.initial = 0x1p24;
    options.steps = steps;
    return train(model, data, options);
  };
  const Steps one = steps_of(1), three = steps_of(3);
  EXPECT_EQ(three.skipped, std::vector<bool>(3, true));
  EXPECT_EQ(three.summary.parameters_sha256, one.summary.parameters_sha256);
}

TEST(CudaFp16, GradientsThatAreSentInFp16GiveTheSameBitsUnderEveryStrategy) {
  const Model model = counting_gpt();
  const test::CountingTokens data;
  const auto sends_fp16 = [](const char* strategy) {
    TrainerOptions options = fp16_options(strategy, 3);
    options.reduce_dtype = DType::kFloat16;
    options.loss_scale.initial = 0x1p19;
    return options;
  };
  const Steps reference = train(model, data, sends_fp16("no_shard"));
  EXPECT_TRUE(reference.skipped.front());
  EXPECT_THAT(reference.skipped, testing::Contains(false));
  for (const char* strategy : {"zero1", "full_shard"}) {
    SCOPED_TRACE(strategy);
    const Steps sharded = train(model, data, sends_fp16(strategy));
    expect_same(sharded, reference);
    expect_as_planned(sharded.summary);
  }
}

TEST(CudaFp16, ThreeRanksEqualOneThatAccumulates) {
  const Model model = counting_gpt();
  const test::CountingTokens data;
  TrainerOptions alone = fp16_options("full_shard", 1);
  alone.accumulate = 3;
  const Steps expected = train(model, data, alone);
  EXPECT_TRUE(expected.skipped.front());
  EXPECT_THAT(expected.skipped, testing::Contains(false));
  expect_same(train(model, data, fp16_options("zero2", 3)), expected);
}

TEST(CudaFp16, AGraphReplaysStepsThatAreSkippedAndOthers) {
  const Model model = counting_gpt(0.1F);
  const test::CountingTokens data;
  TrainerOptions options = fp16_options("full_shard", 1);
  options.cuda_graph = false;
  options.overlap_steps = false;
  const Steps in_turn = train(model, data, options);
  EXPECT_TRUE(in_turn.skipped.front());
  EXPECT_THAT(in_turn.skipped, testing::Contains(false));
  options.overlap_steps = true;
  for (const bool graph : {false, true}) {
    options.cuda_graph = graph;
    expect_same(train(model, data, options), in_turn);
  }
}

// The CPU's kernel writes the fp16 parameter, or leaves it alone.
TEST(CudaFp16, AnOptimizerOnTheHostSkipsAlikeAndGivesTheSameBits) {
  const Model model = counting_gpt();
  const OneRankLearns data;
  const Steps expected = train(model, data, fp16_options("full_shard", kRanks));
  EXPECT_EQ(expected.skipped, kThreeSkipped);
  for (const auto& [strategy, offload] :
       {std::pair{"zero2", "host"}, {"full_shard", "host"}, {"full_shard", "host:0.5"}}) {
    SCOPED_TRACE(concat(strategy, ", ", offload));
    TrainerOptions options = fp16_options(strategy, kRanks);
    options.offload_optimizer = parse_offload(offload);
    const Steps offloaded = train(model, data, options);
    expect_same(offloaded, expected);
    expect_as_planned(offloaded.summary);
    EXPECT_GT(offloaded.summary.predicted_host_memory.total, 0);
  }
}

/// Two models that run all families' kernels.
std::vector<Model> models() {
  std::vector<Model> models;
  models.push_back(counting_gpt());
  models.push_back(make_gpt({.vocab_size = test::kVocabulary,
                             .context_length = test::kLength,
                             .layers = 2,
                             .heads = 2,
                             .width = 16,
                             .tie_embedding = false,
                             .family = GptFamily::kQwen3,
                             .kv_heads = 1,
                             .mlp_width = 24}));
  return models;
}

TEST(CudaFp16, LossesAreNearThoseOfTheCpu) {
  const test::CountingTokens data;
  for (const Model& model : models()) {
    SCOPED_TRACE(model.name);
    TrainerOptions options = fp16_options("full_shard", 2);
    const Steps on_gpu = train(model, data, options);
    options.device = DeviceChoice::kCpu;
    options.group = GroupChoice::kAuto;
    const Steps on_cpu = train(model, data, options);
    EXPECT_EQ(on_gpu.scales, on_cpu.scales);
    EXPECT_EQ(on_gpu.skipped, on_cpu.skipped);
    EXPECT_THAT(on_cpu.skipped, testing::Contains(false));
    ASSERT_EQ(on_gpu.losses.size(), on_cpu.losses.size());
    for (std::size_t i = 0; i < on_cpu.losses.size(); ++i) {
      // Roundings to fp16, of 2^-11, in other places.
      EXPECT_NEAR(on_gpu.loss_values[i], on_cpu.loss_values[i], 2e-3 * on_cpu.loss_values[i]) << i;
    }
  }
}

}  // namespace
}  // namespace tessera::cuda_fp16_test
