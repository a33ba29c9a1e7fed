#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "small_run.h"

// All strategies give the same bits: losses, gradient norms and parameters after ten steps with
// clipping, whatever the number of ranks, the prefetch depth and the delays on the lanes; and one
// rank that accumulates does the same.
namespace tessera::test {
namespace {

constexpr int kSteps = 10;

void expect_same(const SmallResult& expected, const SmallResult& actual) {
  EXPECT_EQ(expected.losses, actual.losses);
  EXPECT_EQ(expected.norms, actual.norms);
  EXPECT_TRUE(same_bits(expected.parameters, actual.parameters));
}

/// One rank that accumulates a micro-step per rank of the others.
SmallRun reference(int ranks) {
  return {.ranks = 1, .strategy = "no_shard", .steps = kSteps, .micro_steps = ranks};
}

class Parity : public testing::TestWithParam<std::tuple<int, DType>> {};

TEST_P(Parity, StrategiesAndDepthsGiveTheBitsOfOneRankThatAccumulates) {
  const auto [ranks, dtype] = GetParam();
  SmallRun one = reference(ranks);
  one.dtype = dtype;
  const SmallResult expected = train(one);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (const Strategy& strategy : strategies()) {
    for (const int depth : {0, 1, 2}) {
      SCOPED_TRACE(strategy.name + " depth " + std::to_string(depth));
      const SmallResult actual = train({.ranks = ranks,
                                        .strategy = strategy.name,
                                        .steps = kSteps,
                                        .prefetch_forward = depth,
                                        .prefetch_backward = depth,
                                        .dtype = dtype});
      expect_same(expected, actual);
      EXPECT_EQ(actual.predicted, actual.measured);
      EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Parity,
                         testing::Combine(testing::Values(1, 2, 3, 4, 7),
                                          testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& test) {
                           return std::string(to_string(std::get<1>(test.param))) + "_" +
                                  std::to_string(std::get<0>(test.param)) + "_ranks";
                         });

TEST(Parity, HoldsWithTwoThreadsPerRank) {
  SmallRun one = reference(2);
  one.threads = 2;
  const SmallResult expected = train(one);
  for (const char* strategy : {"no_shard", "full_shard"}) {
    SCOPED_TRACE(strategy);
    const SmallResult actual =
        train({.ranks = 2, .strategy = strategy, .steps = kSteps, .threads = 2});
    expect_same(expected, actual);
    EXPECT_EQ(actual.predicted, actual.measured);
  }
}

TEST(Parity, AccumulationOverRanksAndMicroStepsIsOneSequence) {
  const SmallResult expected = train(reference(6));
  for (const char* strategy : {"zero2", "shard_grad_op", "full_shard"}) {
    SCOPED_TRACE(strategy);
    expect_same(expected,
                train({.ranks = 2, .strategy = strategy, .steps = kSteps, .micro_steps = 3}));
  }
  expect_same(expected,
              train({.ranks = 1, .strategy = "full_shard", .steps = kSteps, .micro_steps = 6}));
}

TEST(Parity, ReducingOncePerStepGivesTheSameBitsForAllThatDo) {
  const SmallResult expected =
      train({.ranks = 3, .strategy = "no_shard", .steps = kSteps, .micro_steps = 2});
  expect_same(expected,
              train({.ranks = 3, .strategy = "zero1", .steps = kSteps, .micro_steps = 2}));
  for (const char* strategy : {"zero2", "full_shard"}) {
    SCOPED_TRACE(strategy);
    const SmallResult actual = train({.ranks = 3,
                                      .strategy = strategy,
                                      .steps = kSteps,
                                      .micro_steps = 2,
                                      .accumulate_unsharded = true});
    expect_same(expected, actual);
    EXPECT_EQ(actual.predicted, actual.measured);
    EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
  }
}

TEST(Parity, RecomputationAndDropoutChangeNoBit) {
  const SmallRun base{.ranks = 2, .steps = kSteps, .dropout = 0.2F};
  const SmallResult expected = train(base);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    SmallRun run = base;
    run.recompute = recompute;
    const SmallResult actual = train(run);
    expect_same(expected, actual);
    EXPECT_EQ(actual.predicted, actual.measured);
    EXPECT_LT(actual.measured.by_category[MemoryCategory::kActivations],
              expected.measured.by_category[MemoryCategory::kActivations]);
  }
}

TEST(Parity, WrapPoliciesGiveTheSameParametersUpToTheNormsOrder) {
  SmallRun run{.ranks = 3, .steps = kSteps, .clip_norm = 0.0};
  const SmallResult expected = train(run);
  for (const WrapPolicy wrap :
       {WrapPolicy{WrapPolicy::Kind::kNone}, WrapPolicy{WrapPolicy::Kind::kSize, 3000}}) {
    run.wrap = wrap;
    const SmallResult actual = train(run);
    EXPECT_LT(actual.schedule.units.size(), expected.schedule.units.size());
    EXPECT_EQ(expected.losses, actual.losses);
    EXPECT_TRUE(same_bits(expected.parameters, actual.parameters));
    EXPECT_EQ(actual.predicted, actual.measured);
  }
}

TEST(Parity, DelaysOnEveryLaneChangeNothing) {
  for (const char* strategy : {"zero1", "full_shard", "hybrid_shard"}) {
    for (const int depth : {0, 2}) {
      SmallRun run{.ranks = 4,
                   .strategy = strategy,
                   .steps = 2,
                   .prefetch_forward = depth,
                   .prefetch_backward = depth};
      const SmallResult expected = train(run);
      run.before_task = [] {
        thread_local std::mt19937 random(
            static_cast<unsigned>(std::hash<std::thread::id>{}(std::this_thread::get_id())));
        if (random() % 4 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
        }
      };
      SCOPED_TRACE(strategy);
      expect_same(expected, train(run));
    }
  }
}

TEST(Parity, HierarchicalReductionIsCloseAndItsAccountsAreExact) {
  for (const char* strategy : {"hybrid_shard", "hybrid_full_optimizer", "zero1", "zero2"}) {
    for (const int micro_steps : {1, 2}) {
      SCOPED_TRACE(strategy);
      const SmallRun run{
          .ranks = 4, .replicas = 2, .strategy = strategy, .micro_steps = micro_steps};
      const SmallResult by_rank = train(run);
      SmallRun other = run;
      other.reduction_order = ReductionOrder::kHierarchical;
      const SmallResult hierarchical = train(other);
      EXPECT_EQ(by_rank.predicted, by_rank.measured);
      EXPECT_EQ(by_rank.predicted_traffic, by_rank.counted_traffic);
      EXPECT_EQ(hierarchical.predicted, hierarchical.measured);
      EXPECT_EQ(hierarchical.predicted_traffic, hierarchical.counted_traffic);
      for (std::size_t s = 0; s < by_rank.losses.size(); ++s) {
        EXPECT_NEAR(by_rank.losses[s], hierarchical.losses[s], 1e-5);
      }
    }
  }
}

TEST(Parity, ReducingInBf16IsAccountedForAndStaysClose) {
  SmallRun run{.ranks = 3, .strategy = "full_shard", .steps = kSteps, .dtype = DType::kBFloat16};
  const SmallResult fp32 = train(run);
  run.reduce_dtype = DType::kBFloat16;
  const SmallResult bf16 = train(run);
  EXPECT_EQ(bf16.predicted, bf16.measured);
  EXPECT_EQ(bf16.predicted_traffic, bf16.counted_traffic);
  EXPECT_EQ(2 * bf16.counted_traffic.sent_of(CollectiveKind::kReduceScatter),
            fp32.counted_traffic.sent_of(CollectiveKind::kReduceScatter));
  EXPECT_NEAR(fp32.losses.back(), bf16.losses.back(), 0.05);
}

/// Layers whose parameters can be changed before planning.
class Frozen : public Layer {
 public:
  Frozen(std::unique_ptr<Layer> inner, const std::vector<std::string>& names)
      : Layer(inner->name(), inner->type()), inner_(std::move(inner)) {
    parameters_ = inner_->parameters();
    tied_parameters_ = inner_->tied_parameters();
    for (ParameterSpec& spec : parameters_) {
      for (const std::string& name : names) {
        if (spec.name.find(name) != std::string::npos) spec.trainable = false;
      }
    }
  }
  bool backward_reads_parameters() const override { return inner_->backward_reads_parameters(); }
  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    return inner_->forward(tape, input, parameters);
  }

 private:
  std::unique_ptr<Layer> inner_;
};

std::function<void(Model&)> freeze(const std::vector<std::string>& names) {
  return [names](Model& model) {
    for (auto& layer : model.layers) layer = std::make_unique<Frozen>(std::move(layer), names);
  };
}

TEST(Parity, FrozenParametersStayAndTheOthersAgree) {
  for (const auto& names : std::vector<std::vector<std::string>>{
           {"attn"}, {"bias", "ln"}, {"wte", "wpe", "h.0."}, {"h.1."}}) {
    SCOPED_TRACE(names[0]);
    SmallRun run{
        .ranks = 1, .strategy = "no_shard", .steps = 4, .micro_steps = 3, .edit = freeze(names)};
    const SmallResult expected = train(run);
    SmallRun initial = run;
    initial.steps = 1;
    for (const char* strategy : {"no_shard", "zero1", "zero2", "full_shard"}) {
      SCOPED_TRACE(strategy);
      SmallRun sharded = run;
      sharded.ranks = 3;
      sharded.micro_steps = 1;
      sharded.strategy = strategy;
      const SmallResult actual = train(sharded);
      expect_same(expected, actual);
      EXPECT_EQ(actual.predicted, actual.measured);
      EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
    }
  }
}

TEST(Parity, MoreRanksThanAlignedElements) {
  // Biases and norms in units of their own would be smaller than 16 ranks * 64 elements.
  const SmallResult expected = train(reference(16));
  expect_same(expected, train({.ranks = 16, .strategy = "full_shard", .steps = kSteps}));
}

}  // namespace
}  // namespace tessera::test
