#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/golden_text.h"
#include "sharding/schedule_edits.h"
#include "sharding/small_plan.h"
#include "support/extent.h"
#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/sharding/factored_table.h"
#include "tessera/sharding/schedule_json.h"

// Adafactor, whose moments are of rows and columns of matrices: the same bits however these are
// cut, the bytes that it keeps and sends, and no schedule whose sums are not those of all ranks.
namespace tessera::test::factored_optimizer_test {
namespace {

using ::testing::HasSubstr;

SmallRun small_run(DType dtype, bool scale_parameter = false) {
  SmallRun run{.optimizer = "adafactor", .dtype = dtype};
  if (scale_parameter) run.hyperparameters = {{"scale_parameter", 1.0}};
  run.stochastic_rounding = dtype == DType::kBFloat16;
  return run;
}

void expect_same(const SmallRun& run, const SmallResult& expected) {
  SCOPED_TRACE(concat(run.strategy, " on ", run.ranks, " ranks, ", run.micro_steps,
                      " micro-steps, ", run.steps_in_flight, " in flight"));
  const SmallResult actual = train(run);
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.norms, expected.norms);
  EXPECT_TRUE(same_bits(actual.parameters, expected.parameters));
  EXPECT_EQ(actual.predicted, actual.measured);
  EXPECT_EQ(actual.predicted_host, actual.measured_host);
  if (run.steps_in_flight == 1) {
    EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
  }
  EXPECT_EQ(parse_schedule(to_string(actual.schedule)), actual.schedule);
  EXPECT_EQ(schedule_from_json(to_json(actual.schedule)), actual.schedule);
}

class FactoredOptimizer : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Parameters, FactoredOptimizer,
                         testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST_P(FactoredOptimizer, GivesTheSameBitsHoweverItIsSharded) {
  int runs = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    SmallRun one = small_run(GetParam(), ranks % 2 == 1);
    one.strategy = "no_shard";
    one.micro_steps = ranks;
    const SmallResult expected = train(one);
    EXPECT_NE(expected.losses.back(), expected.losses.front());
    for (const Strategy& strategy : strategies()) {
      ++runs;
      if (strategy.hybrid && ranks != 4) continue;
      if (!runs_ci_tests() && (runs + ranks) % 2 == 0) continue;
      SmallRun run = one;
      run.ranks = ranks;
      run.micro_steps = 1;
      run.strategy = strategy.name;
      run.policy.prefetch_forward = run.policy.prefetch_backward = runs % 3;
      if (runs % 5 == 4) run.wrap = {WrapPolicy::Kind::kNone};
      if (runs % 4 == 3) run.steps_in_flight = 2;
      if (runs % 3 == 2) run.delay_seed = runs;
      expect_same(run, expected);
    }
  }
}

TEST_P(FactoredOptimizer, AlsoWithMicroStepsAndRecomputation) {
  SmallRun one = small_run(GetParam(), true);
  one.strategy = "no_shard";
  one.micro_steps = 4;
  const SmallResult expected = train(one);
  for (const char* const strategy : {"zero2", "full_shard"}) {
    SmallRun run = one;
    run.ranks = 2;
    run.micro_steps = 2;
    run.strategy = strategy;
    run.policy.recompute = Recompute::kFull;
    run.offload_activations = true;
    expect_same(run, expected);
  }
}

TEST_P(FactoredOptimizer, StagesKeepTheMomentsOfTheirLayers) {
  SmallRun run = small_run(GetParam(), true);
  run.ranks = 2;
  run.micro_steps = 2;
  run.tied_apart = true;
  const SmallResult expected = train(run);
  run.first_layers = {0, 2};
  const SmallResult actual = train(run);
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_TRUE(same_bits(actual.parameters, expected.parameters));
  std::int64_t numbers = 0;
  for (const StageResult& stage : actual.stages) {
    EXPECT_EQ(stage.predicted, stage.measured);
    EXPECT_EQ(stage.predicted_traffic, stage.counted_traffic);
  }
  for (const Schedule& schedule : actual.step.ranks) {
    numbers += FactoredTable(schedule).numel(BufferKind::kFactors);
  }
  EXPECT_EQ(numbers, FactoredTable(expected.schedule).numel(BufferKind::kFactors));
}

TEST(FactoredOptimizerOfFamilies, PublishedMatricesThatAreJoinedHaveTheirOwnMoments) {
  for (const GptFamily family : {GptFamily::kGpt2, GptFamily::kLlama}) {
    SmallRun one = small_run(DType::kFloat32);
    one.family = family;
    one.strategy = "no_shard";
    one.micro_steps = 3;
    const SmallResult expected = train(one);
    SmallRun run = one;
    run.ranks = 3;
    run.micro_steps = 1;
    run.strategy = "full_shard";
    expect_same(run, expected);
    const Model model = make_gpt(small_gpt(0.0F, family));
    const ModelLayout layout = layout_of(one, model);
    int joined = 0;
    for (const Unit& unit : layout.units) {
      for (const FlatTensor& tensor : unit.flats.front().tensors) {
        joined += tensor.spec.joined.empty() ? 0 : 1;
        std::int64_t rows = 0;
        for (const std::int64_t part : tensor.spec.joined) rows += part;
        EXPECT_TRUE(tensor.spec.joined.empty() || rows == tensor.spec.shape[0]);
      }
    }
    EXPECT_EQ(joined, family == GptFamily::kGpt2 ? 0 : 2 * one.layers);
  }
}

TEST(FactoredOptimizerOfAdapters, GivesTheSameBitsHoweverItIsSharded) {
  SmallRun one = small_run(DType::kFloat32, true);
  one.adapter = {.kind = LoraOptions{.rank = 3, .alpha = 6.0}, .target_pattern = "all-linear"};
  one.strategy = "no_shard";
  one.trainable_strategy = "zero1";
  one.micro_steps = 2;
  const SmallResult expected = train(one);
  SmallRun run = one;
  run.ranks = 2;
  run.micro_steps = 1;
  run.strategy = "full_shard";
  expect_same(run, expected);
  run.trainable_strategy = "";
  expect_same(run, expected);
}

/// By hand: a number for each row and column, of all ranks, and two messages of words.
TEST(FactoredOptimizerAccount, CountsNumbersOfRowsAndColumnsAndTwoMessages) {
  for (const bool scale_parameter : {false, true}) {
    SmallRun run = small_run(DType::kBFloat16, scale_parameter);
    run.ranks = 2;
    const Schedule schedule = plan_of(run);
    const Model model = make_gpt(small_gpt());
    std::int64_t numbers = 0, matrices = 0;
    for (const auto& layer : model.layers) {
      for (const ParameterSpec& spec : layer->parameters()) {
        ++matrices;
        numbers += spec.shape.rank() < 2 ? spec.shape.numel() : spec.shape[0] + spec.shape[1];
      }
    }
    std::int64_t kept = 0;
    for (const ScheduleBuffer& buffer : schedule.buffers) {
      if (buffer.role != Role::kOptimizer) continue;
      EXPECT_EQ(buffer.format, DType::kFloat32);
      EXPECT_EQ(format_of(buffer), "fp32/0");
      kept += buffer.numel;
    }
    EXPECT_EQ(kept, numbers);
    run.optimizer = "sgd";
    run.hyperparameters.clear();
    const std::int64_t words = numbers * 2 + matrices * kExactSumWords * (scale_parameter ? 2 : 1);
    const auto sent = [](const Schedule& s) {
      return account_traffic(s).sent_of(CollectiveKind::kAllReduce);
    };
    EXPECT_EQ(sent(schedule) - sent(plan_of(run)), words * 8) << "two ranks: 2 * 1 / 2 of it";
    EXPECT_EQ(count(schedule, operations::kAllReduce), 2);
  }
}

TEST(FactoredOptimizerPlan, IsAsItWas) {
  SmallRun run = small_run(DType::kBFloat16, true);
  run.ranks = 2;
  run.layers = 2;
  expect_golden("adafactor_full_shard_2_ranks", plan_of(run),
                [](std::string_view text) { return parse_schedule(text); });
}

TEST(FactoredOptimizerPlan, RefusesWhatIsNotOnTheDevice) {
  for (double SmallRun::*share :
       {&SmallRun::offload_optimizer, &SmallRun::offload_parameters, &SmallRun::offload_gradients,
        &SmallRun::disk_optimizer, &SmallRun::disk_parameters}) {
    SmallRun run = small_run(DType::kFloat32);
    run.*share = 1.0;
    try {
      plan_of(run);
      ADD_FAILURE() << "was planned";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("sums over whole matrices"));
    }
  }
}

TEST(FactoredOptimizerPlan, RefusesMatricesWhoseSumsWouldNotFit) {
  const SmallRun run = small_run(DType::kFloat32);
  GptConfig config = small_gpt(0.0F, run.family);
  config.vocab_size = 262208;  // Gemma 3's
  Model model = make_gpt(config);
  EXPECT_NO_THROW(plan(layout_of(run, model), plan_options(run)));
  config.vocab_size = kFactoredTerms + 1;
  model = make_gpt(config);
  try {
    plan(layout_of(run, model), plan_options(run));
    ADD_FAILURE() << "was planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("has 524288 rows"));
  }
}

class FactoredRefusals : public testing::Test {
 protected:
  static Schedule good() {
    SmallRun run = small_run(DType::kFloat32, true);
    run.ranks = 2;
    return plan_of(run);
  }
  static std::size_t find(const Schedule& schedule, const Operation& operation, int number = 0) {
    for (std::size_t a = 0; a < schedule.actions.size(); ++a) {
      if (schedule.actions[a].operation == &operation && number-- == 0) return a;
    }
    ADD_FAILURE() << "no " << operation.name;
    return 0;
  }
  static void expect_refused(const Schedule& schedule, const std::string& text) {
    const auto violations = validate(schedule);
    ASSERT_FALSE(violations.empty());
    EXPECT_THAT(violations.front().message, HasSubstr(text));
  }
  static Schedule without(const Operation& operation, int number = 0) {
    Schedule schedule = good();
    schedule.actions.erase(schedule.actions.begin() +
                           static_cast<std::ptrdiff_t>(find(schedule, operation, number)));
    return synchronise(std::move(schedule));
  }
};

TEST_F(FactoredRefusals, SumsOfOneRankAlone) {
  EXPECT_TRUE(validate(good()).empty());
  expect_refused(without(operations::kAllReduce), "holds this rank's sums");
  expect_refused(without(operations::kAllReduce, 1), "holds this rank's sums");
}

TEST_F(FactoredRefusals, SumsWithoutAFlatParameter) {
  expect_refused(without(operations::kSquareSums, 1), "");
  expect_refused(without(operations::kUpdateSquares, 1), "");
}

TEST_F(FactoredRefusals, MomentsThatAreNotUpdated) {
  expect_refused(without(operations::kMoments, 4), "");
}

TEST_F(FactoredRefusals, ParametersThatAreUpdatedAlready) {
  Schedule schedule = good();
  const std::size_t step = find(schedule, operations::kOptimizerStep);
  const std::size_t sums = find(schedule, operations::kSquareSums);
  Action moved = schedule.actions[step];
  schedule.actions.erase(schedule.actions.begin() + static_cast<std::ptrdiff_t>(step));
  schedule.actions.insert(schedule.actions.begin() + static_cast<std::ptrdiff_t>(sums),
                          std::move(moved));
  expect_refused(synchronise(std::move(schedule)), "holds nothing at this point");
}

}  // namespace
}  // namespace tessera::test::factored_optimizer_test
