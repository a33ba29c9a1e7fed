#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sharding/schedule_edits.h"
#include "sharding/small_plan.h"
#include "support/chain_run.h"
#include "support/small_run.h"
#include "tessera/model/gpt_family.h"
#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/passes.h"

// Backward as two passes, of the gradient of a layer's input and of those of its parameters, and
// the loss as forward and backward: the same bits as in one, the memory that was predicted, and no
// broken pair that passes.
namespace tessera::test::split_backward_test {
namespace {

using namespace operations;  // NOLINT: rows of the table
using ::testing::HasSubstr;

SmallRun split(SmallRun run) {
  run.policy.split_backward = true;
  return run;
}

void expect_same(const SmallResult& expected, const SmallResult& actual) {
  EXPECT_EQ(expected.losses, actual.losses);
  EXPECT_EQ(expected.norms, actual.norms);
  EXPECT_TRUE(same_bits(expected.parameters, actual.parameters));
  EXPECT_EQ(actual.predicted, actual.measured);
  EXPECT_EQ(actual.predicted_host, actual.measured_host);
  EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
  EXPECT_EQ(gradient_sums(expected.schedule).size(), gradient_sums(actual.schedule).size());
  EXPECT_EQ(hash_of(gradient_sums(expected.schedule)), hash_of(gradient_sums(actual.schedule)));
}

/// In the schedule of small_gpt() every pass that can be two is.
void expect_split(const Schedule& schedule) {
  const int micro_steps = schedule.micro_steps;
  const int layers = static_cast<int>(schedule.layers.size());
  EXPECT_EQ(count(schedule, kLoss) + count(schedule, kBackward), 0);
  EXPECT_EQ(count(schedule, kForwardLoss), micro_steps);
  EXPECT_EQ(count(schedule, kLossBackward), micro_steps);
  EXPECT_EQ(count(schedule, kBackwardInput), (layers - 1) * micro_steps);
  EXPECT_EQ(count(schedule, kBackwardWeight), (layers - 1) * micro_steps);
}

class SplitBackwardOfFamilies : public testing::TestWithParam<std::size_t> {};

TEST_P(SplitBackwardOfFamilies, WholeStepsGiveTheSameBits) {
  const FamilyRow& family = gpt_families()[GetParam()];
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      SCOPED_TRACE(concat(to_string(dtype), ", ", to_string(recompute)));
      SmallRun run{.ranks = 2, .steps = 2, .micro_steps = 2, .dtype = dtype, .dropout = 0.1F};
      run.family = family.family;
      run.policy.recompute = recompute;
      const SmallResult expected = train(run), actual = train(split(run));
      expect_split(actual.schedule);
      expect_same(expected, actual);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SplitBackwardOfFamilies,
                         testing::Range<std::size_t>(0, gpt_families().size()),
                         [](const auto& test) {
                           return std::string(gpt_families()[test.param].name);
                         });

TEST(SplitBackward, StrategiesGiveTheSameBits) {
  for (const Strategy& strategy : strategies()) {
    for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(concat(strategy.name, ", ", to_string(reduce_dtype)));
      const SmallRun run{.ranks = 4,
                         .strategy = strategy.name,
                         .steps = 2,
                         .micro_steps = 2,
                         .dtype = reduce_dtype,
                         .reduce_dtype = reduce_dtype};
      expect_same(train(run), train(split(run)));
    }
  }
}

TEST(SplitBackward, WorksWithWhatWaitsOnTheHost) {
  SmallRun run{.ranks = 2, .steps = 2, .micro_steps = 2, .offload_optimizer = 0.5};
  run.offload_parameters = run.offload_gradients = 1.0;
  run.offload_activations = true;
  run.policy.recompute = Recompute::kFull;
  const SmallResult actual = train(split(run));
  EXPECT_GT(count(actual.schedule, kRelease), 0);
  expect_same(train(run), actual);
}

TEST(SplitBackward, WorksWithAdapters) {
  SmallRun run{.ranks = 2, .steps = 2, .micro_steps = 2, .dropout = 0.1F};
  run.adapter = {.kind = LoraOptions{.rank = 3, .alpha = 6.0, .dropout = 0.1F},
                 .target_pattern = "all-linear"};
  run.base_format = WeightFormat::kInt8;
  const SmallResult actual = train(split(run));
  EXPECT_GT(count(actual.schedule, kBackwardWeight), 0);
  expect_same(train(run), actual);
}

// ---- Weight passes that come later -------------------------------------------------------------

/// Until which their weight passes wait.
enum class Until : std::uint8_t { kMicroStep, kStep };

/// A step on one rank with its weight passes, and what becomes of their gradients, moved behind all
/// other passes of their micro-step, or of the step.
Schedule delayed(Schedule schedule, Until until) {
  std::vector<Action> actions, later;
  for (Action& action : schedule.actions) {
    const bool of_weights = action.operation == &kBackwardWeight;
    const bool follows =
        !later.empty() && (action.operation == &kCast || action.operation == &kNormPartial);
    const bool ends = of_weights && action.layer == schedule.first_backward_layer &&
                      (until == Until::kMicroStep || action.micro_step == schedule.micro_steps - 1);
    if (!ends && (of_weights || follows)) {
      later.push_back(std::move(action));
      continue;
    }
    if (ends) {
      std::ranges::move(later, std::back_inserter(actions));
      later.clear();
    }
    actions.push_back(std::move(action));
  }
  EXPECT_TRUE(later.empty());
  schedule.actions = std::move(actions);
  return synchronise(std::move(schedule));
}

/// Trains a small GPT by `schedule` on one rank.
SmallResult train_by(const Schedule& schedule, const SmallRun& run) {
  const Model model = make_gpt(small_gpt(run.dropout, run.family));
  const RandomTokens source(11, 61, run.ignores_some);
  const ModelLayout layout = layout_of(run, model);
  SmallResult result;
  result.schedule = schedule;
  require_valid(schedule);
  const ExecutorOptions options = executor_options(run);
  result.predicted = predict_memory(schedule, layout, model, source, options);
  const auto world = make_thread_group(1);
  launch_ranks(world, [&](int, ProcessGroup& group) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedule);
    TrainingState state(layout, state_options(schedule), 0, memory);
    Executor executor(state, model, {{&schedule, &source}}, groups, memory, options);
    for (int step = 0; step < run.steps; ++step) {
      const StepResult r = executor.run_step(step, 1e-2);
      result.losses.push_back(r.loss);
      result.norms.push_back(r.gradient_norm);
    }
    result.measured = memory.peak();
    result.parameters = executor.gather_parameters();
  });
  return result;
}

TEST(SplitBackward, WeightPassesMayComeLater) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      SmallRun run{.strategy = "no_shard", .steps = 2, .micro_steps = 2, .dtype = dtype};
      run.dropout = 0.1F;
      run.policy.recompute = recompute;
      const SmallResult expected = train(run), direct = train(split(run));
      const std::int64_t kept = direct.measured.by_category[MemoryCategory::kActivations];
      for (const Until until : {Until::kMicroStep, Until::kStep}) {
        SCOPED_TRACE(concat(to_string(dtype), ", ", to_string(recompute),
                            until == Until::kStep ? ", behind the step" : ""));
        const SmallResult later = train_by(delayed(direct.schedule, until), run);
        EXPECT_EQ(expected.losses, later.losses);
        EXPECT_EQ(expected.norms, later.norms);
        EXPECT_TRUE(same_bits(expected.parameters, later.parameters));
        // What is kept meanwhile is counted; within a micro-step it may lie below the peak.
        EXPECT_EQ(later.predicted, later.measured);
        const std::int64_t more = later.measured.by_category[MemoryCategory::kActivations];
        EXPECT_GE(more, kept);
        EXPECT_TRUE(more > kept || until == Until::kMicroStep);
      }
    }
  }
}

// ---- What may be split --------------------------------------------------------------------------

Schedule planned_apart(int micro_steps = 1) {
  PlanOptions options{.mesh = {}, .placement = find_strategy("no_shard").placement};
  options.micro_steps = micro_steps;
  options.policy.split_backward = true;
  Schedule schedule = plan(small_layout(1), options);
  EXPECT_EQ(text_of(validate(schedule)), "");
  return schedule;
}

TEST(SplitBackward, IsForLayersThatDeclareIt) {
  ModelLayout layout = small_layout(1);
  layout.layers[1].splits_backward = layout.layers.back().splits_backward = false;
  PlanOptions options{.mesh = {}, .placement = find_strategy("no_shard").placement};
  options.policy.split_backward = true;
  const Schedule schedule = plan(layout, options);
  EXPECT_EQ(text_of(validate(schedule)), "");
  EXPECT_EQ(count(schedule, kLoss), 1);
  EXPECT_EQ(count(schedule, kBackward), 1);
  EXPECT_EQ(at(schedule, find(schedule, kBackward)).layer, 1);
  EXPECT_EQ(count(schedule, kBackwardInput), 3);
}

TEST(SplitBackward, IsForLayersThatTrain) {
  ModelLayout layout = small_layout(1);
  for (FlatParameter& flat : layout.units[2].flats) flat.trainable = false;
  PlanOptions options{.mesh = {}, .placement = find_strategy("no_shard").placement};
  options.policy.split_backward = true;
  const Schedule schedule = plan(layout, options);
  EXPECT_EQ(count(schedule, kBackward), 1);
  EXPECT_EQ(at(schedule, find(schedule, kBackward)).layer, 2);
}

TEST(SplitBackward, IsNotTheDefault) {
  const SmallResult result = train({.ranks = 1, .steps = 1});
  for (const Operation* const operation :
       {&kForwardLoss, &kLossBackward, &kBackwardInput, &kBackwardWeight}) {
    EXPECT_EQ(count(result.schedule, *operation), 0) << operation->name;
  }
}

/// The error that a step ends with.
std::string failure_of(const ChainRun& chain) {
  std::string text = "no error";
  const auto world = make_thread_group(1);
  launch_ranks(world, [&](int, ProcessGroup& group) {
    try {
      ChainRank rank(chain, group);
      rank.executor->run_step(0, kRate);
    } catch (const Error& error) {
      text = error.what();
    }
  });
  return text;
}

// A layer of ChainLayer has an operation of its own, recorded as a whole.
TEST(SplitBackward, ALayerThatDeclaresItFalselyEndsTheRun) {
  ChainRun chain{.run = split({.strategy = "no_shard"}),
                 .model = make_chain({.hook = [](Moment, int, std::int64_t) {}})};
  EXPECT_EQ(count(chain.schedule, kBackwardInput), 0);  // it does not declare it
  EXPECT_EQ(failure_of(chain), "no error");
  for (LayerLayout& layer : chain.layout.layers) layer.splits_backward = true;
  chain.schedule = plan(chain.layout, plan_options(chain.run));
  EXPECT_GT(count(chain.schedule, kBackwardInput), 0);
  EXPECT_THAT(failure_of(chain), HasSubstr("the backward of layer 'l2' cannot be two passes: it "
                                           "does not set splits_backward_"));
  chain.model = make_chain({.hook = [](Moment, int, std::int64_t) {}, .splits_backward = true});
  EXPECT_THAT(failure_of(chain),
              HasSubstr("an operation of its own is recorded by Tape::output()"));
}

// ---- Broken pairs -------------------------------------------------------------------------------

TEST(SplitBackwardContents, FindsAPairInTheWrongOrder) {
  const Schedule s = planned_apart();
  const int input = find_pass(s, kBackwardInput, 2), weight = find_pass(s, kBackwardWeight, 2);
  ASSERT_EQ(weight, input + 1);
  expect_breaks(moved(s, weight, input), Rule::kContents,
                "reads x.h.1.m0, of which no backward-input has kept anything");
}

TEST(SplitBackwardContents, FindsHalfAPair) {
  const Schedule s = planned_apart();
  expect_breaks(without(s, find_pass(s, kBackwardInput, 0)), Rule::kContents,
                "reads x.embedding.m0, of which no backward-input has kept anything");
  expect_breaks(without(s, find_pass(s, kBackwardWeight, 0)), Rule::kContents, "is incomplete");
  expect_breaks(without(s, find(s, kLossBackward)), Rule::kContents,
                "reads d.h.2.m0, which holds nothing at this point");
  expect_breaks(without(s, find(s, kForwardLoss)), Rule::kContents,
                "reads x.head.m0, which holds nothing at this point");
}

TEST(SplitBackwardContents, FindsAPassThatIsRepeated) {
  const Schedule s = planned_apart();
  const auto twice = [&](const Operation& operation, int layer) {
    Schedule broken = s;
    const int pass = find_pass(s, operation, layer);
    broken.actions.insert(broken.actions.begin() + pass, at(s, pass));
    for (Action& action : broken.actions) action.waits = action.previous_waits = {};
    return synchronise(broken);
  };
  expect_breaks(twice(kBackwardInput, 2), Rule::kContents,
                "reads x.h.1.m0, which holds nothing for it at this point");
  expect_breaks(twice(kBackwardWeight, 2), Rule::kContents,
                "reads x.h.1.m0, which holds nothing at this point");
  expect_breaks(twice(kLossBackward, 4), Rule::kContents,
                "reads x.head.m0, which holds nothing at this point");
}

TEST(SplitBackwardContents, FindsAnotherPassInAPlaceOfAPair) {
  const Schedule s = planned_apart();
  const auto changed = [&](const Operation& operation, int layer, const Operation& to) {
    Schedule broken = s;
    at(broken, find_pass(s, operation, layer)).operation = &to;
    return broken;
  };
  expect_breaks(changed(kBackwardInput, 2, kBackward), Rule::kContents,
                "must write the gradient of h.1");
  expect_breaks(changed(kBackwardWeight, 2, kBackward), Rule::kContents,
                "must read the parameters of h.1");
  expect_breaks(changed(kLossBackward, 4, kBackward), Rule::kContents,
                "the last layer's backward is part of its loss, or 'loss-backward'");
  expect_breaks(changed(kLossBackward, 4, kBackwardInput), Rule::kContents,
                "the last layer's backward is part of its loss, or 'loss-backward'");
  expect_breaks(changed(kBackwardInput, 2, kLossBackward), Rule::kContents,
                "only the last layer makes losses");
}

// The second contribution of a tied weight comes after the first.
TEST(SplitBackwardContents, FindsAWeightPassAcrossMicroSteps) {
  const Schedule s = planned_apart(2);
  Schedule broken = s;
  std::swap(at(broken, find_pass(s, kBackwardWeight, 0, 0)),
            at(broken, find_pass(s, kBackwardWeight, 0, 1)));
  expect_breaks(broken, Rule::kContents, "reads x.embedding.m1, which holds nothing at this point");
}

}  // namespace
}  // namespace tessera::test::split_backward_test
