#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sharding/schedule_edits.h"
#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"

// Updates that do not wait for the gradient norm (PlanOptions::updates_wait_for_norm).
namespace tessera::test::early_updates_test {
namespace {

using ::testing::HasSubstr;

std::string name_of(const SmallRun& run) {
  return concat(run.strategy, ", ", run.first_layers.size(), " stages of ", run.ranks, " ranks, ",
                run.micro_steps, " micro-steps, ", to_string(run.dtype), ", ", run.steps_in_flight,
                " in flight, ", run.offload_optimizer, " on the host, ", run.disk_optimizer,
                " on disk");
}

/// Bits, traffic and the predicted memory are those of updates that wait, but for the factor of 1.
void expect_same_as_waiting(SmallRun run) {
  SCOPED_TRACE(name_of(run));
  run.clip_norm = 0.0;
  const SmallResult waiting = train(run);
  run.updates_wait_for_norm = false;
  for (const bool delayed : {false, true}) {
    if (delayed) run.delay_seed = 5;
    const SmallResult early = train(run);
    EXPECT_EQ(early.losses, waiting.losses);
    EXPECT_EQ(early.norms, waiting.norms);
    EXPECT_TRUE(same_bits(early.parameters, waiting.parameters));
    for (std::size_t stage = 0; stage < early.stages.size(); ++stage) {
      EXPECT_EQ(early.stages[stage].measured, early.stages[stage].predicted);
      EXPECT_EQ(early.stages[stage].measured_host, early.stages[stage].predicted_host);
      EXPECT_EQ(early.stages[stage].counted_traffic, early.stages[stage].predicted_traffic);
      EXPECT_EQ(early.stages[stage].predicted_traffic, waiting.stages[stage].predicted_traffic);
    }
  }
}

TEST(EarlyUpdates, HaveTheBitsOfUpdatesThatWait) {
  for (const char* strategy : {"no_shard", "zero1", "zero2", "full_shard", "hybrid_shard"}) {
    expect_same_as_waiting({.ranks = 2, .strategy = strategy, .micro_steps = 2});
  }
  expect_same_as_waiting({.ranks = 2, .dtype = DType::kBFloat16, .stochastic_rounding = true});
  expect_same_as_waiting({.ranks = 1, .strategy = "no_shard"});
}

TEST(EarlyUpdates, OfAPipelineHaveTheBitsOfUpdatesThatWait) {
  for (const bool tied : {true, false}) {
    expect_same_as_waiting(
        {.tied = tied, .first_layers = {0, 1, 3}, .strategy = "no_shard", .micro_steps = 3});
  }
  expect_same_as_waiting({.ranks = 2, .first_layers = {0, 2}, .micro_steps = 4});
}

TEST(EarlyUpdates, OnTheHostAndOnDiskHaveTheBitsOfUpdatesThatWait) {
  expect_same_as_waiting({.ranks = 2, .offload_optimizer = 1.0});
  expect_same_as_waiting({.ranks = 2, .disk_optimizer = 1.0});
}

/// Two steps in flight have other memory than the simulation of one, and are held to bits alone.
TEST(EarlyUpdates, BesideTheNextStepHaveTheBitsOfStepsInTurn) {
  for (const std::vector<int>& first_layers : {std::vector<int>{}, std::vector<int>{0, 2}}) {
    SmallRun run{.ranks = 2,
                 .first_layers = first_layers,
                 .tied_apart = true,
                 .steps = 5,
                 .micro_steps = 2,
                 .clip_norm = 0.0,
                 .updates_wait_for_norm = false};
    const SmallResult expected = train(run);
    run.steps_in_flight = 2;
    for (const bool delayed : {false, true}) {
      if (delayed) run.delay_seed = 7;
      const SmallResult ahead = train(run);
      EXPECT_EQ(ahead.losses, expected.losses);
      EXPECT_EQ(ahead.norms, expected.norms);
      EXPECT_TRUE(same_bits(ahead.parameters, expected.parameters));
    }
  }
}

Schedule early_schedule(bool waits = false) {
  const SmallRun run{.ranks = 2, .clip_norm = 0.0, .updates_wait_for_norm = waits};
  const Model model = make_gpt(small_gpt());
  return plan(layout_of(run, model), plan_options(run));
}

std::string first_violation(const Schedule& schedule) {
  const std::vector<Violation> violations = validate(schedule);
  return violations.empty() ? "" : violations.front().message;
}

TEST(EarlyUpdates, AreInTheTextOnlyWhereTheyAre) {
  const Schedule early = early_schedule();
  const std::string text = to_string(early);
  EXPECT_THAT(text, HasSubstr("updates_wait_for_norm"));
  EXPECT_EQ(parse_schedule(text), early);
  EXPECT_EQ(to_string(early_schedule(true)).find("updates_wait_for_norm"), std::string::npos);
}

TEST(EarlyUpdates, AreWhatThePolicySays) {
  Schedule early = early_schedule();
  EXPECT_EQ(first_violation(early), "");
  early.updates_wait_for_norm = true;
  EXPECT_THAT(first_violation(early), HasSubstr("must name the buffer 'results'"));
  Schedule waiting = early_schedule(true);
  EXPECT_EQ(first_violation(waiting), "");
  waiting.updates_wait_for_norm = false;
  EXPECT_THAT(first_violation(waiting), HasSubstr("must name the buffer 'tokens'"));
  Schedule both = early_schedule();
  Action& step = at(both, find(both, operations::kOptimizerStep));
  step.reads.insert(step.reads.begin() + 1, {.buffer = both.find("results")});
  bool found = false;
  for (const Violation& violation : validate(both)) {
    found = found || violation.message.find("do not wait for them") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

/// What an executor of such a schedule says of options that need the norm.
std::string refusal_of(const ExecutorOptions& options) {
  const SmallRun run{.strategy = "no_shard", .updates_wait_for_norm = false};
  const Model model = make_gpt(small_gpt());
  const RandomTokens source(11, 61, false);
  const ModelLayout layout = layout_of(run, model);
  const Schedule schedule = plan(layout, plan_options(run));
  try {
    simulate(schedule, layout, model, source, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(EarlyUpdates, AreRefusedWhereTheNormIsNeeded) {
  ExecutorOptions options = executor_options({});
  EXPECT_THAT(refusal_of(options), HasSubstr("clipping"));
  options.optimizer.clip_norm = 0.0;
  EXPECT_EQ(refusal_of(options), "");
  options.loss_scaling.emplace();
  EXPECT_THAT(refusal_of(options), HasSubstr("loss scaling"));
}

constexpr int kStages = 4;
constexpr int kMicroSteps = 6;

/// Virtual seconds of a step of four stages of one block each: a forward takes 1, a backward 2, and
/// the updates of each stage as long as `updates` says.
double step_seconds(bool waits, const std::vector<double>& updates) {
  const SmallRun run{.layers = kStages,
                     .tied = false,
                     .first_layers = {0, 2, 3, 4},
                     .strategy = "no_shard",
                     .micro_steps = kMicroSteps,
                     .clip_norm = 0.0,
                     .updates_wait_for_norm = waits};
  GptConfig config = small_gpt();
  config.layers = run.layers;
  config.tie_embedding = false;
  const Model model = make_gpt(config);
  const RandomTokens source(11, 61, false);
  const ModelLayout layout = layout_of(run, model);
  const StepPlan step = plan_step(layout, plan_options(run, model, layout, source));
  require_valid(step);
  ExecutorOptions options = executor_options(run);
  options.cost = [&](const Schedule& schedule, const Action& action) {
    if (action.operation == &operations::kOptimizerStep) {
      // The first update of a stage stands for all of them.
      const auto first =
          std::ranges::find(schedule.actions, &operations::kOptimizerStep, &Action::operation);
      return &*first == &action ? updates[static_cast<std::size_t>(schedule.pipeline.rank)] : 0.0;
    }
    const bool block = action.layer > 0 && action.layer <= kStages && action.operation->is_pass;
    if (!block) return 0.0;
    const PassParts& parts = action.operation->parts;
    return (parts.forward ? 1.0 : 0.0) + (parts.backward ? 2.0 : 0.0);
  };
  std::vector<std::vector<Program>> ranks;
  for (const Schedule& schedule : step.ranks) ranks.push_back({{&schedule, &source}});
  const std::vector<ExecutorOptions> all(ranks.size(), options);
  double end = 0.0;
  for (const Simulation& rank :
       simulate(ranks, layout, model, state_options(step.ranks.front()), all)) {
    for (const ActionSpan& span : rank.spans) end = std::max(end, span.end);
  }
  return end;
}

/// A stage is over with its passes one backward before the stage in front of it.
TEST(EarlyUpdates, OfLaterStagesRunWhileEarlierOnesCompute) {
  const double passes = (kMicroSteps + kStages - 1) * 3.0;
  for (const std::vector<double>& updates :
       {std::vector<double>{0, 0, 0, 5}, {1, 1, 1, 9}, {2, 2, 2, 2}, {0, 3, 4, 1}}) {
    double early = passes, longest = 0.0;
    for (int s = 0; s < kStages; ++s) {
      const double update = updates[static_cast<std::size_t>(s)];
      longest = std::max(longest, update);
      early = std::max(early, passes - 2.0 * s + update);
    }
    EXPECT_DOUBLE_EQ(step_seconds(true, updates), passes + longest);
    EXPECT_DOUBLE_EQ(step_seconds(false, updates), early);
  }
}

}  // namespace
}  // namespace tessera::test::early_updates_test
