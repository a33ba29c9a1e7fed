#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "support/chain_run.h"
#include "support/extent.h"

// Loss scaling in whole steps: what a step that is skipped leaves as it is, on every rank.
namespace tessera::test::loss_scaling_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSteps = 6;
constexpr float kHuge = 0x1p100F;  // the scale
constexpr float kLarge = 0x1p40F;  // inputs so large overflow with that scale, and not without
const float kNaN = std::nanf("");

double rate_of(std::int64_t taken) { return kRate / static_cast<double>(1 + taken); }

struct Result {
  std::vector<double> losses, norms, rates;
  std::vector<float> scales;
  std::vector<bool> skipped;
  LossScalerState scaler;
  std::vector<FullParameter> parameters;
};

LossScaling dynamic(float scale, std::int64_t window = 1000) {
  return {.rule = {.window = window}, .initial_scale = scale};
}

/// The last sample of a step: of the last rank, in the last micro-step.
std::int64_t last_sample(const SmallRun& run, int step) {
  return (step + 1) * kMicroBatch * run.ranks * run.micro_steps - 1;
}

ChainRun chain_of(SmallRun run, const LossScaling& scaling, int in_flight = 1) {
  run.steps = kSteps;
  ChainRun chain{.run = run};
  PlanOptions options = plan_options(run);
  options.overlap_optimizer = in_flight > 1;
  chain.schedule = plan(chain.layout, options);
  chain.options.steps_in_flight = in_flight;
  chain.options.optimizer.stochastic_rounding = run.stochastic_rounding;
  chain.options.loss_scaling = scaling;
  return chain;
}

void add(const StepResult& step, Result& result) {
  result.losses.push_back(step.loss);
  result.norms.push_back(step.gradient_norm);
  result.rates.push_back(step.learning_rate);
  if (!step.loss_scale) return;
  result.scales.push_back(step.loss_scale->scale);
  result.skipped.push_back(step.loss_scale->skipped);
}

Result train_scaled(const ChainRun& chain) {
  std::vector<Result> results(static_cast<std::size_t>(chain.run.ranks));
  launch_ranks(make_thread_group(chain.run.ranks), [&](int rank, ProcessGroup& group) {
    ChainRank member(chain, group);
    Result& result = results[static_cast<std::size_t>(rank)];
    const int ahead = chain.options.steps_in_flight - 1;
    for (int step = 0; step < kSteps + ahead; ++step) {
      if (step < kSteps) member.executor->begin_step(step, rate_of);
      if (step >= ahead) add(member.executor->finish_step(), result);
    }
    result.scaler = member.executor->loss_scaler();
    result.parameters = member.executor->gather_parameters();
  });
  for (const Result& result : results) {
    EXPECT_EQ(result.skipped, results[0].skipped);
    EXPECT_EQ(result.scaler, results[0].scaler);
    EXPECT_TRUE(same_bits(result.parameters, results[0].parameters));
  }
  return results[0];
}

/// Without loss scaling, and without the steps that it has skipped.
Result train_others(const ChainRun& scaled, const std::vector<bool>& skipped) {
  std::vector<Result> results(static_cast<std::size_t>(scaled.run.ranks));
  launch_ranks(make_thread_group(scaled.run.ranks), [&](int rank, ProcessGroup& group) {
    ExecutorOptions options = scaled.options;
    options.loss_scaling.reset();
    ChainRank member(scaled, group, std::move(options));
    Result& result = results[static_cast<std::size_t>(rank)];
    LossScalerState state;
    for (int step = 0; step < kSteps; ++step) {
      if (skipped[static_cast<std::size_t>(step)]) {
        ++state.skipped;
        member.executor->set_loss_scaler(state);
        continue;
      }
      member.executor->begin_step(step, rate_of);
      add(member.executor->finish_step(), result);
    }
    result.parameters = member.executor->gather_parameters();
  });
  return results[0];
}

/// The same but for the steps that were skipped.
void expect_like(const Result& others, const Result& scaled) {
  std::size_t other = 0;
  for (std::size_t step = 0; step < kSteps; ++step) {
    if (scaled.skipped[step]) continue;
    EXPECT_EQ(scaled.losses[step], others.losses.at(other)) << step;
    EXPECT_EQ(scaled.norms[step], others.norms.at(other)) << step;
    EXPECT_EQ(scaled.rates[step], others.rates.at(other)) << step;
    ++other;
  }
  EXPECT_TRUE(same_bits(scaled.parameters, others.parameters));
}

TEST(LossScaling, ByPowersOfTwoKeepsTheBits) {
  for (const Strategy& strategy : strategies()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(concat(strategy.name, ", ", to_string(dtype)));
      LossScaling fixed = dynamic(65536.0F);
      fixed.rule.dynamic = false;
      const ChainRun chain =
          chain_of({.ranks = 3, .strategy = strategy.name, .dtype = dtype}, fixed);
      const Result scaled = train_scaled(chain);
      EXPECT_EQ(scaled.skipped, std::vector<bool>(kSteps, false));
      EXPECT_EQ(scaled.scales, std::vector<float>(kSteps, 65536.0F));
      expect_like(train_others(chain, scaled.skipped), scaled);
    }
  }
}

/// Steps 1, 2 and 4 overflow on one rank, in its last micro-step.
TEST(LossScaling, AnOverflowOnOneRankSkipsTheStepOnAll) {
  const std::vector<bool> expected{false, true, true, false, true, false};
  std::vector<FullParameter> of_first;
  for (const Strategy& strategy : strategies()) {
    for (const int micro_steps : {1, 2}) {
      for (const int in_flight : {1, 2}) {
        SCOPED_TRACE(concat(strategy.name, ", ", micro_steps, " micro-steps, ", in_flight));
        const SmallRun run{.ranks = 4, .strategy = strategy.name, .micro_steps = micro_steps};
        ChainRun chain = chain_of(run, dynamic(kHuge), in_flight);
        for (const int step : {1, 2, 4}) {  // one whose class is right has no gradient
          chain.source.times[last_sample(run, step)] = kLarge;
          chain.source.times[last_sample(run, step) - 1] = kLarge;
        }
        const Result scaled = train_scaled(chain);
        ASSERT_EQ(scaled.skipped, expected);
        EXPECT_THAT(scaled.scales,
                    ElementsAre(kHuge, kHuge, kHuge / 2, kHuge / 4, kHuge / 4, kHuge / 8));
        EXPECT_EQ(scaled.scaler,
                  (LossScalerState{.scale = kHuge / 8, .good_steps = 1, .skipped = 3}));
        EXPECT_EQ(scaled.rates.back(), rate_of(2));
        expect_like(train_others(chain, scaled.skipped), scaled);
        if (micro_steps > 1) continue;
        if (of_first.empty()) of_first = scaled.parameters;
        EXPECT_TRUE(same_bits(scaled.parameters, of_first));
      }
    }
  }
}

TEST(LossScaling, ANaNSkipsTheStepToo) {
  const SmallRun run{
      .ranks = 2, .strategy = "zero2", .dtype = DType::kBFloat16, .stochastic_rounding = true};
  ChainRun chain = chain_of(run, dynamic(1024.0F, 2), 2);
  chain.source.times[last_sample(run, 3)] = kNaN;
  const Result scaled = train_scaled(chain);
  EXPECT_EQ(scaled.skipped, (std::vector<bool>{false, false, false, true, false, false}));
  EXPECT_TRUE(std::isnan(scaled.losses[3]));
  EXPECT_THAT(scaled.scales, ElementsAre(1024, 1024, 2048, 2048, 1024, 1024));
  EXPECT_EQ(scaled.scaler.scale, 2048);
  expect_like(train_others(chain, scaled.skipped), scaled);
}

// What fp16 cannot hold is infinite, on one rank: all skip the step, and go on with the same bits.
TEST(LossScaling, AnOverflowOfFp16OnOneRankSkipsTheStepOnAll) {
  for (const DType reduce : {DType::kFloat32, DType::kFloat16}) {
    std::vector<FullParameter> of_first;
    for (const Strategy& strategy : strategies()) {
      SCOPED_TRACE(concat(strategy.name, ", reduced in ", to_string(reduce)));
      const SmallRun run{
          .ranks = 3, .strategy = strategy.name, .dtype = DType::kFloat16, .reduce_dtype = reduce};
      ChainRun chain = chain_of(run, dynamic(256.0F, 2), 2);
      chain.source.times[last_sample(run, 3)] = kLarge;
      const Result scaled = train_scaled(chain);
      EXPECT_EQ(scaled.skipped, (std::vector<bool>{false, false, false, true, false, false}));
      EXPECT_THAT(scaled.scales, ElementsAre(256, 256, 512, 512, 256, 256));
      if (of_first.empty()) of_first = scaled.parameters;
      EXPECT_TRUE(same_bits(scaled.parameters, of_first));
    }
  }
}

TEST(LossScaling, GoesOnFromItsStateInTheMiddleOfAWindow) {
  const SmallRun run{.ranks = 2};
  ChainRun chain = chain_of(run, dynamic(kHuge, 3));
  chain.source.times[last_sample(run, 1)] = kLarge;
  const Result expected = train_scaled(chain);
  launch_ranks(make_thread_group(2), [&](int /*rank*/, ProcessGroup& group) {
    ChainRank first(chain, group);
    for (int step = 0; step < 3; ++step) {
      first.executor->begin_step(step, rate_of);
      first.executor->finish_step();
    }
    const std::vector<FullParameter> parameters = first.executor->gather_parameters();
    ChainRun later = chain_of(run, dynamic(1.0F, 3));
    ChainRank second(later, group);
    second.executor->set_loss_scaler(first.executor->loss_scaler());
    Result result;
    for (int step = 3; step < kSteps; ++step) {
      second.executor->begin_step(step, rate_of);
      add(second.executor->finish_step(), result);
    }
    EXPECT_THAT(result.scales,
                ElementsAre(expected.scales[3], expected.scales[4], expected.scales[5]));
    EXPECT_EQ(result.rates[0], expected.rates[3]);
    EXPECT_EQ(second.executor->loss_scaler(), expected.scaler);
  });
}

// Parameters that the host sends back must be right where the host has not written any yet.
TEST(LossScaling, SkipsTheFirstStepAlikeWithTheOptimizerOnTheHost) {
  bool overlaps = false;
  std::size_t number = 0;
  for (const Strategy& strategy : strategies()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      if (kSanitized && number++ % 3 != 0) continue;
      SCOPED_TRACE(concat(strategy.name, ", ", to_string(dtype)));
      SmallRun run{.ranks = 3, .strategy = strategy.name, .dtype = dtype};
      run.stochastic_rounding = dtype == DType::kBFloat16;
      std::vector<Result> results;
      for (const double share : {0.0, 0.5, 1.0}) {
        run.offload_optimizer = share;
        ChainRun chain = chain_of(run, dynamic(kHuge), overlaps ? 2 : 1);
        chain.source.times[last_sample(run, 0)] = kLarge;
        results.push_back(train_scaled(chain));
        EXPECT_TRUE(results.back().skipped.front());
        EXPECT_EQ(results.back().skipped, results.front().skipped);
        EXPECT_EQ(results.back().losses, results.front().losses);
        EXPECT_TRUE(same_bits(results.back().parameters, results.front().parameters));
      }
      overlaps = !overlaps;
    }
  }
}

/// Every rank names the tensor, though one alone has its gradient.
TEST(LossScaling, AtItsMinimumNamesUnitAndTensor) {
  for (const std::string strategy : {"no_shard", "full_shard", "zero1"}) {
    const SmallRun run{.ranks = 3, .strategy = strategy};
    LossScaling scaling = dynamic(kHuge);
    scaling.rule.dialect = LossScaleDialect::kDeepSpeed;
    scaling.rule.minimum = kHuge;
    ChainRun chain = chain_of(run, scaling, 2);
    chain.source.times[last_sample(run, 0)] = kLarge;
    launch_ranks(make_thread_group(3), [&](int /*rank*/, ProcessGroup& group) {
      ChainRank member(chain, group);
      member.executor->begin_step(0, rate_of);
      member.executor->begin_step(1, rate_of);
      const StepResult first = member.executor->finish_step();
      ASSERT_TRUE(first.loss_scale->exhausted);
      EXPECT_EQ(first.loss_scale->non_finite, "the gradient of l0.weight in unit l0");
      EXPECT_FALSE(member.executor->finish_step().loss_scale->skipped);
    });
  }
}

TEST(LossScaling, TakesThePredictedMemory) {
  for (const bool scales : {false, true}) {
    ChainRun chain = chain_of({.ranks = 2}, dynamic(65536.0F));
    if (!scales) chain.options.loss_scaling.reset();
    const MemoryPeak predicted =
        predict_memory(chain.schedule, chain.layout, chain.model, chain.source, chain.options);
    launch_ranks(make_thread_group(2), [&](int /*rank*/, ProcessGroup& group) {
      ChainRank member(chain, group);
      member.executor->run_step(0, kRate);
      EXPECT_EQ(member.memory.peak(), predicted);
    });
  }
}

}  // namespace
}  // namespace tessera::test::loss_scaling_test
