#include <gtest/gtest.h>

#include <ostream>

#include "support/frozen_layers.h"
#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

// All strategies give the same bits: losses, gradient norms and parameters after ten steps with
// clipping, whatever the number of ranks, their mesh, the prefetch depth and the delays on the
// lanes; and one rank that accumulates does the same.
namespace tessera::test::parity_test {
namespace {

constexpr int kSteps = 10;

void expect_same(const SmallResult& expected, const SmallResult& actual) {
  EXPECT_EQ(expected.losses, actual.losses);
  EXPECT_EQ(expected.norms, actual.norms);
  EXPECT_TRUE(same_bits(expected.parameters, actual.parameters));
}

/// What gradients and parameters are computed in, and what gradients travel in.
struct Formats {
  const char* name;
  DType dtype, reduce_dtype;
};
void PrintTo(const Formats& formats, std::ostream* out) { *out << formats.name; }
constexpr Formats kFp32{"fp32", DType::kFloat32, DType::kFloat32};
constexpr Formats kBf16{"bf16", DType::kBFloat16, DType::kFloat32};
constexpr Formats kReducedInBf16{"reduced_in_bf16", DType::kBFloat16, DType::kBFloat16};
constexpr Formats kFp16{"fp16", DType::kFloat16, DType::kFloat32};
constexpr Formats kReducedInFp16{"reduced_in_fp16", DType::kFloat16, DType::kFloat16};

SmallRun in(const Formats& formats, SmallRun run) {
  run.dtype = formats.dtype;
  run.reduce_dtype = formats.reduce_dtype;
  return run;
}

/// One rank that accumulates a micro-step per rank of the others.
SmallRun reference(int ranks, const Formats& formats = kFp32) {
  return in(formats, {.ranks = 1, .strategy = "no_shard", .steps = kSteps, .micro_steps = ranks});
}

/// Trains at every prefetch depth, and expects these results, and the bytes that were planned.
void expect_parity(SmallRun run, const SmallResult& expected) {
  for (const int depth : {0, 1, 2}) {
    SCOPED_TRACE(concat(run.strategy, " on ", run.ranks, " ranks, ", run.replicas,
                        " replicas (0: by default), depth ", depth));
    run.policy.prefetch_forward = run.policy.prefetch_backward = depth;
    const SmallResult actual = train(run);
    expect_same(expected, actual);
    EXPECT_EQ(actual.predicted, actual.measured);
    EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
  }
}

// Hybrids are 2x2 on four ranks. One, two, three and seven cannot be divided into several replicas
// of several ranks: there they are what strategy_note() says.
class Parity : public testing::TestWithParam<std::tuple<int, Formats>> {};

TEST_P(Parity, StrategiesAndDepthsGiveTheBitsOfOneRankThatAccumulates) {
  const auto [ranks, formats] = GetParam();
  const SmallRun one = reference(ranks, formats);
  const SmallResult expected = train(one);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  EXPECT_GT(expected.norms.front(), one.clip_norm) << "nothing was clipped";
  for (const Strategy& strategy : strategies()) {
    expect_parity(in(formats, {.ranks = ranks, .strategy = strategy.name, .steps = kSteps}),
                  expected);
  }
}

// With one micro-step there is nothing to add up before the reduction.
TEST_P(Parity, AccumulatingUnshardedChangesNoBitOfOneMicroStep) {
  const auto [ranks, formats] = GetParam();
  const SmallResult expected = train(reference(ranks, formats));
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    const SmallResult actual = train(in(formats, {.ranks = ranks,
                                                  .strategy = strategy.name,
                                                  .steps = kSteps,
                                                  .accumulate_unsharded = true}));
    expect_same(expected, actual);
    EXPECT_EQ(actual.predicted, actual.measured);
    EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
  }
}

const auto kFormats = testing::Values(kFp32, kBf16, kReducedInBf16);

INSTANTIATE_TEST_SUITE_P(Ranks, Parity, testing::Combine(testing::Values(1, 2, 3, 4, 7), kFormats),
                         [](const auto& test) {
                           return std::string(std::get<1>(test.param).name) + "_" +
                                  std::to_string(std::get<0>(test.param)) + "_ranks";
                         });

// fp16 goes the ways of bf16: a sample.
INSTANTIATE_TEST_SUITE_P(RanksInFp16, Parity,
                         testing::Values(std::tuple{1, kReducedInFp16}, std::tuple{2, kFp16},
                                         std::tuple{3, kReducedInFp16}, std::tuple{3, kFp16}),
                         [](const auto& test) {
                           return std::string(std::get<1>(test.param).name) + "_" +
                                  std::to_string(std::get<0>(test.param)) + "_ranks";
                         });

class ParityOfFormats : public testing::TestWithParam<Formats> {};

INSTANTIATE_TEST_SUITE_P(Formats, ParityOfFormats, kFormats,
                         [](const auto& test) { return std::string(test.param.name); });

// Replicas and shards of different sizes: two replicas of three ranks, and three of two.
TEST_P(ParityOfFormats, HybridsOnSixRanksGiveTheSameBits) {
  const SmallResult expected = train(reference(6, GetParam()));
  for (const Strategy& strategy : strategies()) {
    if (!strategy.hybrid) continue;
    for (const int replicas : {2, 3}) {
      expect_parity(
          in(GetParam(),
             {.ranks = 6, .replicas = replicas, .strategy = strategy.name, .steps = kSteps}),
          expected);
    }
  }
}

class ParityOfFamilies : public testing::TestWithParam<std::tuple<std::size_t, Formats>> {};

// Rotations, grouped queries, windows, norms of heads and gated MLPs, with what is remade.
TEST_P(ParityOfFamilies, StrategiesAndRecomputationGiveTheBitsOfOneRankThatAccumulates) {
  const auto [index, formats] = GetParam();
  const FamilyRow& family = gpt_families()[index];
  for (const int ranks : {1, 2, 3, 4}) {
    SmallRun one = reference(ranks, formats);
    one.family = family.family;
    one.dropout = 0.1F;
    const SmallResult expected = train(one);
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    std::size_t number = static_cast<std::size_t>(ranks) + index;
    for (const Strategy& strategy : strategies()) {
      ++number;
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        // The sample has each strategy on each number of ranks once, and with all three.
        if (!runs_long_tests() && number % 3 != static_cast<std::size_t>(recompute)) continue;
        SCOPED_TRACE(concat(strategy.name, " on ", ranks, " ranks, ", to_string(recompute)));
        SmallRun run = one;
        run.ranks = ranks;
        run.strategy = strategy.name;
        run.micro_steps = 1;
        run.policy.recompute = recompute;
        const SmallResult actual = train(run);
        expect_same(expected, actual);
        EXPECT_EQ(actual.predicted, actual.measured);
        EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
      }
    }
  }
}

// The first is GPT-2, which all other tests train.
INSTANTIATE_TEST_SUITE_P(Families, ParityOfFamilies,
                         testing::Combine(testing::Range<std::size_t>(1, gpt_families().size()),
                                          testing::Values(kFp32, kBf16)),
                         [](const auto& test) {
                           return concat(gpt_families()[std::get<0>(test.param)].name, "_",
                                         std::get<1>(test.param).name);
                         });

// Without clipping the same steps end elsewhere: a clip factor that was not applied would show.
TEST(Parity, ClippingMatters) {
  SmallRun run = reference(2);
  const SmallResult clipped = train(run);
  run.clip_norm = 0.0;
  EXPECT_FALSE(same_bits(clipped.parameters, train(run).parameters));
}

TEST(Parity, HoldsWhereParametersAreRoundedAtRandom) {
  SmallRun one = reference(4);
  one.dtype = DType::kBFloat16;
  const SmallResult to_the_nearest = train(one);
  one.stochastic_rounding = true;
  const SmallResult expected = train(one);
  EXPECT_NE(expected.losses, to_the_nearest.losses);
  SmallRun four{.ranks = 4, .steps = kSteps, .dtype = DType::kBFloat16};
  four.stochastic_rounding = true;
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    four.strategy = strategy.name;
    expect_same(expected, train(four));
  }
}

TEST(Parity, WhatIsRoundedAtRandomDoesNotDependOnUnits) {
  SmallRun run{.ranks = 2, .steps = kSteps, .dtype = DType::kBFloat16};
  run.stochastic_rounding = true;
  const SmallResult expected = train(run);
  run.wrap = {.kind = WrapPolicy::Kind::kNone};
  const SmallResult actual = train(run);
  EXPECT_EQ(expected.losses, actual.losses);
  EXPECT_TRUE(same_bits(expected.parameters, actual.parameters));
}

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

TEST_P(ParityOfFormats, AccumulationOverRanksAndMicroStepsIsOneSequence) {
  const SmallResult expected = train(reference(6, GetParam()));
  const auto expect_sequence = [&](const SmallRun& run) {
    SCOPED_TRACE(concat(run.strategy, " on ", run.ranks, " ranks"));
    const SmallResult actual = train(in(GetParam(), run));
    expect_same(expected, actual);
    EXPECT_EQ(actual.predicted, actual.measured);
    EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
  };
  for (const char* strategy : {"zero2", "shard_grad_op", "full_shard"}) {
    for (const int ranks : {2, 3}) {
      expect_sequence(
          {.ranks = ranks, .strategy = strategy, .steps = kSteps, .micro_steps = 6 / ranks});
    }
  }
  expect_sequence({.ranks = 1, .strategy = "full_shard", .steps = kSteps, .micro_steps = 6});
  const SmallResult twelve = train(reference(12, GetParam()));
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2", "hybrid_full_optimizer"}) {
    SCOPED_TRACE(strategy);
    for (const int ranks : {4, 6}) {
      expect_same(twelve, train(in(GetParam(), {.ranks = ranks,
                                                .replicas = 2,
                                                .strategy = strategy,
                                                .steps = kSteps,
                                                .micro_steps = 12 / ranks})));
    }
  }
}

TEST_P(ParityOfFormats, ReducingOncePerStepGivesTheSameBitsForAllThatDo) {
  for (const auto& [ranks, micro_steps] : {std::pair{2, 3}, {3, 2}, {4, 2}, {6, 2}}) {
    const SmallRun base =
        in(GetParam(), {.ranks = ranks, .steps = kSteps, .micro_steps = micro_steps});
    SmallRun whole = base;
    whole.strategy = "no_shard";
    const SmallResult expected = train(whole);
    for (const Strategy& strategy : strategies()) {
      SCOPED_TRACE(concat(strategy.name, " on ", ranks, " ranks"));
      SmallRun run = base;
      run.strategy = strategy.name;
      run.accumulate_unsharded = true;
      const SmallResult actual = train(run);
      expect_same(expected, actual);
      EXPECT_EQ(actual.predicted, actual.measured);
      EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
    }
  }
}

TEST(Parity, RecomputationAndDropoutChangeNoBit) {
  const SmallRun base{.ranks = 2, .steps = kSteps, .dropout = 0.2F};
  const SmallResult expected = train(base);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    SmallRun run = base;
    run.policy.recompute = recompute;
    const SmallResult actual = train(run);
    expect_same(expected, actual);
    EXPECT_EQ(actual.predicted, actual.measured);
    EXPECT_LT(actual.measured.by_category[MemoryCategory::kActivations],
              expected.measured.by_category[MemoryCategory::kActivations]);
  }
}

// Masks are drawn by sample and element: other micro-batches round sums otherwise, and no more.
TEST(Parity, DropoutDoesNotDependOnTheMicroBatch) {
  for (const auto& [family, packed] :
       {std::pair{GptFamily::kGpt2, false}, {GptFamily::kLlama, false}, {GptFamily::kGpt2, true}}) {
    SmallRun run{.strategy = "no_shard", .steps = kSteps, .micro_batch = 4};
    run.dropout = 0.2F;
    run.family = family;
    run.packed = packed;
    const SmallResult expected = train(run);
    for (const auto [ranks, micro_steps, micro_batch] :
         {std::array{1, 2, 2}, std::array{1, 4, 1}, std::array{2, 2, 1}, std::array{2, 1, 2}}) {
      SCOPED_TRACE(concat(ranks, " ranks, ", micro_steps, " micro-steps of ", micro_batch));
      run.ranks = ranks;
      run.micro_steps = micro_steps;
      run.micro_batch = micro_batch;
      const SmallResult actual = train(run);
      ASSERT_EQ(actual.losses.size(), expected.losses.size());
      for (std::size_t i = 0; i < expected.losses.size(); ++i) {
        EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-5 * expected.losses[i]);
        EXPECT_NEAR(actual.norms[i], expected.norms[i], 1e-4 * expected.norms[i]);
      }
    }
  }
}

// And not by rank.
TEST(Parity, DropoutDoesNotDependOnTheWorldSize) {
  SmallRun one = reference(4);
  const SmallResult without = train(one);
  one.dropout = 0.2F;
  const SmallResult expected = train(one);
  EXPECT_FALSE(same_bits(expected.parameters, without.parameters));
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    expect_same(
        expected,
        train({.ranks = 4, .strategy = strategy.name, .steps = kSteps, .dropout = one.dropout}));
  }
  expect_same(expected, train({.ranks = 2,
                               .strategy = "full_shard",
                               .steps = kSteps,
                               .micro_steps = 2,
                               .dropout = one.dropout}));
}

// The norm is an exact sum, so what is one unit changes neither its bits nor what is clipped by it.
TEST(Parity, WrapPoliciesGiveTheSameBits) {
  SmallRun run{.ranks = 3, .steps = kSteps};
  const SmallResult expected = train(run);
  EXPECT_GT(expected.norms.front(), run.clip_norm) << "nothing was clipped";
  for (const WrapPolicy wrap :
       {WrapPolicy{WrapPolicy::Kind::kNone}, WrapPolicy{WrapPolicy::Kind::kSize, 3000}}) {
    run.wrap = wrap;
    const SmallResult actual = train(run);
    EXPECT_LT(actual.schedule.units.size(), expected.schedule.units.size());
    EXPECT_EQ(expected.losses, actual.losses);
    EXPECT_EQ(expected.norms, actual.norms);
    EXPECT_TRUE(same_bits(expected.parameters, actual.parameters));
    EXPECT_EQ(actual.predicted, actual.measured);
    EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
  }
}

TEST_P(ParityOfFormats, DelaysOnEveryLaneChangeNothing) {
  SmallRun one = reference(4, GetParam());
  one.steps = 2;
  const SmallResult expected = train(one);
  std::uint32_t seed = 0;
  for (const Strategy& strategy : strategies()) {
    ++seed;
    SCOPED_TRACE(concat("delay_seed ", seed));
    expect_parity(
        in(GetParam(),
           {.ranks = 4, .strategy = strategy.name, .steps = one.steps, .delay_seed = seed}),
        expected);
  }
}

// Whole gradients that are added up before they travel meet the reduce lane once per step.
TEST_P(ParityOfFormats, DelaysChangeNothingWhereGradientsTravelOncePerStep) {
  SmallRun run = in(GetParam(), {.ranks = 3, .strategy = "no_shard", .steps = 2, .micro_steps = 3});
  const SmallResult expected = train(run);
  run.accumulate_unsharded = true;
  run.delay_seed = 100;
  for (const Strategy& strategy : strategies()) {
    run.strategy = strategy.name;
    ++*run.delay_seed;
    expect_parity(run, expected);
  }
}

TEST_P(ParityOfFormats, HierarchicalReductionIsCloseAndItsAccountsAreExact) {
  for (const char* strategy :
       {"hybrid_shard", "hybrid_full_optimizer", "no_shard", "zero1", "zero2"}) {
    for (const int micro_steps : {1, 2}) {
      SCOPED_TRACE(strategy);
      const SmallRun run =
          in(GetParam(),
             {.ranks = 4, .replicas = 2, .strategy = strategy, .micro_steps = micro_steps});
      const SmallResult by_rank = train(run);
      SmallRun other = run;
      other.reduction_order = ReductionOrder::kHierarchical;
      const SmallResult hierarchical = train(other);
      EXPECT_EQ(by_rank.predicted, by_rank.measured);
      EXPECT_EQ(by_rank.predicted_traffic, by_rank.counted_traffic);
      EXPECT_EQ(hierarchical.predicted, hierarchical.measured);
      EXPECT_EQ(hierarchical.predicted_traffic, hierarchical.counted_traffic);
      for (std::size_t s = 0; s < by_rank.losses.size(); ++s) {
        const double tolerance = GetParam().dtype == DType::kFloat32 ? 1e-5 : 1e-2;
        EXPECT_NEAR(by_rank.losses[s], hierarchical.losses[s], tolerance);
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

TEST(Parity, FrozenParametersStayAndTheOthersAgree) {
  for (const auto& names : std::vector<std::vector<std::string>>{
           {"attn"}, {"bias", "ln"}, {"wte", "wpe", "h.0."}, {"h.1."}}) {
    SCOPED_TRACE(names[0]);
    SmallRun run{
        .ranks = 1, .strategy = "no_shard", .steps = 4, .micro_steps = 3, .edit = freeze(names)};
    const SmallResult expected = train(run);
    SmallRun untrained = run;
    untrained.steps = 0;
    const SmallResult initial = train(untrained);
    ASSERT_EQ(initial.parameters.size(), expected.parameters.size());
    int frozen = 0;
    for (std::size_t i = 0; i < initial.parameters.size(); ++i) {
      const FullParameter& before = initial.parameters[i];
      const bool stays = contains_any(before.name, names);
      frozen += stays ? 1 : 0;
      EXPECT_EQ(same_bits({before}, {expected.parameters[i]}), stays) << before.name;
    }
    EXPECT_GT(frozen, 0);
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

// The head's unit is its norm alone: most of 16 ranks hold nothing of it but padding.
TEST(Parity, RanksThatHoldOnlyPadding) {
  constexpr int kRanks = 16;
  const ModelLayout layout = make_layout(make_gpt(small_gpt()), {}, kRanks);
  const FlatParameter& head = layout.units.back().flats.front();
  ASSERT_LE(head.numel, 2 * head.padded_numel / kRanks);
  const SmallResult expected = train(reference(kRanks));
  expect_same(expected, train({.ranks = kRanks, .strategy = "full_shard", .steps = kSteps}));
}

}  // namespace
}  // namespace tessera::test::parity_test
