#include <cmath>
#include <set>
#include <tuple>

#include "cuda/cuda_run.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"

// Steps on a GPU: what the CPU's tests hold the executor to, held on CUDA streams. Compiled twice,
// for an emulated GPU and for a real one.
namespace tessera {
namespace {

using test::counting_gpt;
using test::cuda_options;
using test::expect_same_bits;
using test::run;
using test::TemporaryFolder;
using test::Trained;

TEST(CudaStep, AllStrategiesGiveTheSameBitsOnFourRanksOfOneGpu) {
  const Model model = counting_gpt();
  const Trained reference = run(model, cuda_options("no_shard", 4));
  EXPECT_LT(reference.losses.back(), reference.losses.front());
  for (const Strategy& strategy : strategies()) {
    if (strategy.name == "no_shard") continue;
    SCOPED_TRACE(strategy.name);
    const Trained sharded = run(model, cuda_options(strategy.name, 4));
    expect_same_bits(sharded, reference);
    EXPECT_EQ(sharded.summary.measured_memory, sharded.summary.predicted_memory);
    for (const Traffic& counted : sharded.summary.counted_traffic) {
      EXPECT_EQ(counted, sharded.summary.predicted_traffic);
    }
  }
}

TEST(CudaStep, FourRanksEqualOneThatAccumulates) {
  const Model model = counting_gpt();
  TrainerOptions alone = cuda_options("full_shard", 1);
  alone.accumulate = 3;
  expect_same_bits(run(model, cuda_options("zero2", 3)), run(model, alone));
}

TEST(CudaStep, Fp8GivesTheSameBitsForEveryStrategyAndInAGraph) {
  const Model model = counting_gpt();
  for (const Fp8Recipe recipe : {Fp8Recipe::kCurrent, Fp8Recipe::kDelayed}) {
    const auto in_fp8 = [=](TrainerOptions options, bool graph) {
      options.precision = DType::kBFloat16;
      options.fp8.enabled = true;
      options.fp8.recipe = recipe;
      options.cuda_graph = graph;
      return options;
    };
    TrainerOptions alone = in_fp8(cuda_options("full_shard", 1), false);
    alone.accumulate = 2;
    const Trained expected = run(model, alone);
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    alone.cuda_graph = true;
    expect_same_bits(run(model, alone), expected);
    for (const char* const strategy : {"zero1", "full_shard"}) {
      const Trained sharded = run(model, in_fp8(cuda_options(strategy, 2), false));
      expect_same_bits(sharded, expected);
      EXPECT_EQ(sharded.summary.measured_memory, sharded.summary.predicted_memory);
    }
  }
}

TEST(CudaStep, AdafactorGivesTheSameBitsForEveryStrategyAndInAGraph) {
  const Model model = counting_gpt();
  for (const bool scales : {false, true}) {
    const auto factored = [=](TrainerOptions options) {
      options.precision = scales ? DType::kFloat32 : DType::kBFloat16;
      options.optimizer.name = "adafactor";
      options.optimizer.hyperparameters = {{"scale_parameter", scales ? 1.0 : 0.0}};
      return options;
    };
    TrainerOptions alone = factored(cuda_options("full_shard", 1));
    alone.accumulate = 2;
    alone.cuda_graph = false;
    const Trained expected = run(model, alone);
    for (const bool overlaps : {false, true}) {
      alone.overlap_steps = overlaps;
      alone.cuda_graph = true;
      expect_same_bits(run(model, alone), expected);
    }
    for (const char* const strategy : {"zero1", "full_shard"}) {
      const Trained sharded = run(model, factored(cuda_options(strategy, 2)));
      expect_same_bits(sharded, expected);
      EXPECT_EQ(sharded.summary.measured_memory, sharded.summary.predicted_memory);
    }
  }
}

TEST(CudaStep, AGraphReplaysTheSameBits) {
  const Model model = counting_gpt();
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions options = cuda_options("full_shard", 1);
    options.precision = precision;
    options.cuda_graph = false;
    const Trained eager = run(model, options);
    options.cuda_graph = true;
    expect_same_bits(run(model, options), eager);
  }
}

TEST(CudaStep, StepsThatOverlapGiveTheSameBits) {
  const Model model = counting_gpt(0.1F);
  for (const auto& [strategy, ranks] : {std::pair{"no_shard", 1},
                                        {"full_shard", 1},
                                        {"zero1", 2},
                                        {"full_shard", 2},
                                        {"hybrid_full_optimizer", 4}}) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(concat(strategy, " on ", ranks, ", ", to_string(precision)));
      TrainerOptions options = cuda_options(strategy, ranks);
      options.precision = precision;
      options.optimizer.stochastic_rounding = precision == DType::kBFloat16;
      options.steps = 6;
      options.cuda_graph = false;
      options.overlap_steps = false;
      const Trained in_turn = run(model, options);
      options.overlap_steps = true;
      const Trained eager = run(model, options);
      expect_same_bits(eager, in_turn);
      EXPECT_EQ(eager.summary.measured_memory, eager.summary.predicted_memory);
      if (ranks > 1) continue;  // a thread group's ranks meet on the host
      options.cuda_graph = true;
      expect_same_bits(run(model, options), in_turn);
    }
  }
}

// cuBLASLt takes GELU of an fp32 product; what selective recomputation has of it is in bf16.
TEST(CudaStep, RecomputationChangesNoBitUnlessGeluIsFused) {
  const Model model = counting_gpt(0.1F);
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(to_string(precision));
    TrainerOptions options = cuda_options("full_shard", 2);
    options.precision = precision;
    const Trained kept = run(model, options);
    options.policy.recompute = Recompute::kFull;
    expect_same_bits(run(model, options), kept);
    options.policy.recompute = Recompute::kSelective;
    const Trained selective = run(model, options);
    if (precision == DType::kFloat32) {
      expect_same_bits(selective, kept);
      continue;
    }
    for (std::size_t i = 0; i < kept.losses.size(); ++i) {
      EXPECT_NEAR(selective.losses[i], kept.losses[i], 1e-2 * kept.losses[i]);
    }
  }
}

// Inputs of recomputed blocks go to pinned memory and back on streams of their own.
TEST(CudaStep, ActivationsThatWaitOnTheHostGiveTheSameBits) {
  const Model model = counting_gpt(0.1F);
  for (const auto& [strategy, ranks, ahead] : {std::tuple{"no_shard", 1, 1},
                                               {"full_shard", 1, 0},
                                               {"zero2", 2, 1},
                                               {"full_shard", 2, 0}}) {
    SCOPED_TRACE(concat(strategy, " on ", ranks, ", ", ahead, " ahead"));
    TrainerOptions options = cuda_options(strategy, ranks);
    options.precision = DType::kBFloat16;
    options.accumulate = 2;
    options.policy = {.recompute = Recompute::kFull, .prefetch_host = ahead};
    options.cuda_graph = false;
    const Trained expected = run(model, options);
    options.offload_activations = ActivationOffload::kHost;
    for (const bool graph : {false, true}) {
      options.cuda_graph = graph;
      const Trained offloaded = run(model, options);
      expect_same_bits(offloaded, expected);
      EXPECT_EQ(offloaded.summary.measured_memory, offloaded.summary.predicted_memory);
      EXPECT_EQ(offloaded.summary.measured_host_memory, offloaded.summary.predicted_host_memory);
      EXPECT_GT(offloaded.summary.predicted_host_memory.total, 0);
      for (const Traffic& counted : offloaded.summary.counted_traffic) {
        EXPECT_EQ(counted, offloaded.summary.predicted_traffic);
      }
    }
  }
}

/// The copies of a checkpoint run beside a step that is no graph, between steps that are.
TEST(CudaStep, StepsThatCopyTheStateChangeNoBitAndCopyTheRightOne) {
  const TemporaryFolder folder;
  for (const char* strategy : {"zero1", "full_shard"}) {
    SCOPED_TRACE(strategy);
    TrainerOptions options = cuda_options(strategy, 2);
    options.steps = 6;
    options.precision = DType::kBFloat16;
    options.optimizer.stochastic_rounding = true;
    const Trained expected = run(counting_gpt(), options);
    options.checkpoints = {.folder = folder.path(strategy), .every = 2};
    expect_same_bits(expected, run(counting_gpt(), options));
    options.checkpoints.resume = folder.path(strategy) + "/step_2";
    const Trained rest = run(counting_gpt(), options);
    EXPECT_EQ(rest.losses, std::vector<double>(expected.losses.begin() + 2, expected.losses.end()));
    EXPECT_EQ(rest.parameters, expected.parameters);
  }
}

TEST(CudaStep, AGraphFollowsTheKeysOfDropout) {
  const Model model = counting_gpt(0.2F);
  TrainerOptions options = cuda_options("zero2", 1);
  options.accumulate = 2;
  options.cuda_graph = false;
  const Trained eager = run(model, options);
  options.cuda_graph = true;
  expect_same_bits(run(model, options), eager);
}

/// Tokens that are the same in every step.
class OneSample : public test::CountingTokens {
 public:
  std::int64_t fill(std::int64_t, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override {
    return CountingTokens::fill(0, micro_batch, inputs, targets);
  }
};

TEST(CudaStep, AReplayedStepDrawsOtherMasks) {
  // Parameters and tokens stay as they are, so losses differ by the masks alone.
  const OneSample data;
  TrainerOptions options = cuda_options("full_shard", 1);
  options.learning_rate = {.peak = 0.0};
  options.cuda_graph = true;
  const auto distinct_losses = [&](float dropout) {
    std::set<double> losses;
    const Model model = counting_gpt(dropout);
    Trainer(model, data, options).train([&](const StepRecord& record) {
      losses.insert(record.loss);
      return true;
    });
    return static_cast<std::int64_t>(losses.size());
  };
  EXPECT_EQ(distinct_losses(0.0F), 1);
  EXPECT_EQ(distinct_losses(0.2F), options.steps);
}

TEST(CudaStep, RoundingAtRandomIsTheSameForStrategiesAndGraphs) {
  const Model model = counting_gpt();
  const auto run_with = [&](const std::string& strategy, int ranks, bool graph) {
    TrainerOptions options = cuda_options(strategy, ranks);
    options.accumulate = 2 / ranks;
    options.precision = DType::kBFloat16;
    options.optimizer.stochastic_rounding = true;
    options.cuda_graph = graph;
    return run(model, options);
  };
  const Trained eager = run_with("full_shard", 1, false);
  expect_same_bits(run_with("full_shard", 1, true), eager);
  expect_same_bits(run_with("zero1", 2, false), eager);
  TrainerOptions to_the_nearest = cuda_options("zero1", 2);
  to_the_nearest.precision = DType::kBFloat16;
  EXPECT_NE(run(model, to_the_nearest).losses, eager.losses);
}

TEST(CudaStep, LossesAreNearThoseOfTheCpu) {
  const Model model = counting_gpt();
  const Trained on_gpu = run(model, cuda_options("full_shard", 2));
  TrainerOptions options = cuda_options("full_shard", 2);
  options.device = DeviceChoice::kCpu;
  options.group = GroupChoice::kAuto;
  const Trained on_cpu = run(model, options);
  ASSERT_EQ(on_gpu.losses.size(), on_cpu.losses.size());
  for (std::size_t i = 0; i < on_cpu.losses.size(); ++i) {
    // Sums in other orders, a few roundings of fp32 in each of a few steps.
    EXPECT_NEAR(on_gpu.losses[i], on_cpu.losses[i], 2e-5 * std::abs(on_cpu.losses[i])) << i;
  }
}

// 2050 tokens take 2176 rows of memory, which the head's products take for rows of the weight.
TEST(CudaStep, ZerosBehindTheVocabularyAreNoPartOfTheModel) {
  const Model model = make_gpt(
      {.vocab_size = 2050, .context_length = test::kLength, .layers = 1, .heads = 2, .width = 16});
  const auto options = [](const char* strategy) {
    TrainerOptions result = cuda_options(strategy, 2);
    result.accumulate = 2;
    return result;
  };
  const Trained sharded = run(model, options("full_shard"));
  expect_same_bits(run(model, options("zero2")), sharded);
  EXPECT_EQ(sharded.summary.measured_memory, sharded.summary.predicted_memory);
  TrainerOptions on_cpu = options("full_shard");
  on_cpu.device = DeviceChoice::kCpu;
  on_cpu.group = GroupChoice::kAuto;
  const Trained expected = run(model, on_cpu);
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(sharded.losses[i], expected.losses[i], 2e-5 * std::abs(expected.losses[i])) << i;
    EXPECT_NEAR(sharded.norms[i], expected.norms[i], 2e-4 * std::abs(expected.norms[i])) << i;
  }
}

}  // namespace
}  // namespace tessera
