#include <gmock/gmock.h>

#include <array>
#include <bit>
#include <cmath>
#include <functional>

#include "sharding/golden_text.h"
#include "sharding/small_plan.h"
#include "support/extent.h"
#include "support/small_layout.h"
#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/passes.h"
#include "tessera/sharding/scales.h"
#include "tessera/sharding/schedule_json.h"

// Delayed scaling: histories that are the same for every strategy and number of ranks, and no
// schedule whose scales are of another step, or of one rank alone.
namespace tessera::test::delayed_scaling_test {
namespace {

using ::testing::HasSubstr;

SmallRun small_run(GatherFormat format = GatherFormat::kE4M3) {
  return {
      .dtype = DType::kBFloat16,
      .fp8 = {
          .enabled = true, .recipe = Fp8Recipe::kDelayed, .gather_format = format, .history = 3}};
}

void expect_same(const SmallResult& actual, const SmallResult& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.norms, expected.norms);
  EXPECT_TRUE(same_bits(actual.parameters, expected.parameters));
  EXPECT_EQ(actual.histories, expected.histories);
  EXPECT_TRUE(actual.ranks_have_one_history);
}

void expect_as_planned(const SmallResult& result, const SmallRun& run) {
  EXPECT_EQ(result.predicted, result.measured);
  EXPECT_EQ(result.predicted_host, result.measured_host);
  if (run.steps_in_flight == 1) {
    EXPECT_EQ(result.predicted_traffic, result.counted_traffic);
  }
  EXPECT_EQ(parse_schedule(to_string(result.schedule)), result.schedule);
  EXPECT_EQ(schedule_from_json(to_json(result.schedule)), result.schedule);
}

TEST(DelayedScaling, EveryStrategyGivesTheBitsOfOneRankThatAccumulates) {
  int runs = 0;
  for (const int ranks : {2, 3, 4}) {
    SmallRun one = small_run();
    one.strategy = "no_shard";
    one.micro_steps = ranks;
    const SmallResult expected = train(one);
    EXPECT_EQ(std::ssize(expected.histories), 12) << "four matrices in each of three blocks";
    for (const Strategy& strategy : strategies()) {
      ++runs;
      if (strategy.hybrid && ranks != 4) continue;
      if (!runs_ci_tests() && runs % 4 != 1) continue;
      SmallRun run = small_run(runs % 3 == 2 ? GatherFormat::kBf16 : GatherFormat::kE4M3);
      run.ranks = ranks;
      run.strategy = strategy.name;
      run.policy.recompute = std::array{Recompute::kNone, Recompute::kFull,
                                        Recompute::kSelective}[static_cast<std::size_t>(runs % 3)];
      run.policy.prefetch_forward = run.policy.prefetch_backward = runs % 4 % 3;
      if (runs % 5 == 4) run.wrap = {WrapPolicy::Kind::kNone};
      if (runs % 4 == 3) run.steps_in_flight = 2;
      if (runs % 2 == 0) run.delay_seed = runs;
      SCOPED_TRACE(concat(strategy.name, " on ", ranks));
      const SmallResult actual = train(run);
      expect_same(actual, expected);
      expect_as_planned(actual, run);
      EXPECT_EQ(count(actual.schedule, operations::kAllReduceMax), 1) << "scales need no other";
    }
  }
}

TEST(DelayedScaling, OffloadingStagesAndProductsGiveTheSameBits) {
  for (const bool forward : {true, false}) {
    if (!forward && !runs_ci_tests()) continue;
    SmallRun run = small_run();
    run.ranks = 2;
    run.micro_steps = 2;
    run.steps = 2;
    run.fp8.products.forward = forward;
    const SmallResult expected = train(run);
    for (const int variant : {0, 1, 2}) {
      SmallRun own = run;
      if (variant == 0) own.offload_parameters = 0.5;
      if (variant == 1) own.offload_optimizer = own.offload_gradients = 1.0;
      if (variant == 2) own.policy.recompute = Recompute::kFull;
      SCOPED_TRACE(variant);
      const SmallResult actual = train(own);
      expect_same(actual, expected);
      expect_as_planned(actual, own);
    }
    run.tied_apart = true;
    const SmallResult apart = train(run);
    for (const PipelineOrder order :
         {PipelineOrder::kOneForwardOneBackward, PipelineOrder::kZeroBubble}) {
      SmallRun stages = run;
      stages.first_layers = {0, 2};
      stages.pipeline_order = order;
      expect_same(train(stages), apart);
    }
  }
}

TEST(DelayedScaling, NotesNameATensorThatWasInfinite) {
  Fp8History sound{.name = "h.0.weight", .words = {{{1, 2}, {0x7fc00000}, {3}}}};
  EXPECT_EQ(note_of_infinities({sound}), "") << "NaN is in the norm";
  Fp8History infinite{.name = "h.1.weight", .words = {{{1}, {2}, {3, 0x7f800000}}}};
  EXPECT_THAT(note_of_infinities({sound, infinite}),
              HasSubstr("a number in h.1.weight (its output's gradient) was infinite"));
  infinite.words[0].push_back(0x7f800000);
  EXPECT_THAT(note_of_infinities({infinite}), HasSubstr("h.1.weight (the matrix) and in 1 other"));
}

TEST(DelayedScaling, AdaptersAndPackedSamplesGiveTheSameBits) {
  for (const bool adapted : {true, false}) {
    SmallRun one = small_run();
    one.strategy = "no_shard";
    one.micro_steps = 2;
    one.packed = true;
    if (adapted) {
      one.adapter = {.kind = LoraOptions{.rank = 3, .alpha = 6.0}, .target_pattern = "all-linear"};
    }
    const SmallResult expected = train(one);
    EXPECT_EQ(std::ssize(expected.histories), 12);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      SmallRun run = one;
      run.ranks = 2;
      run.micro_steps = 1;
      run.strategy = "full_shard";
      run.policy.recompute = recompute;
      const SmallResult actual = train(run);
      expect_same(actual, expected);
      expect_as_planned(actual, run);
    }
  }
}

/// After each step the newest word is the largest magnitude, and the scale is what the rule says of
/// the history, with oracles of the definition.
TEST(DelayedScaling, HistoriesHaveWhatTheStepsHaveSeen) {
  for (const Fp8HistoryRule rule : {Fp8HistoryRule::kMax, Fp8HistoryRule::kMostRecent}) {
    std::vector<SmallResult> after;
    for (const int steps : {1, 2, 3, 4}) {
      SmallRun run = small_run();
      run.layers = 1;
      run.ranks = 2;
      run.steps = steps;
      run.fp8.history_rule = rule;
      run.fp8.margin = 1;
      after.push_back(train(run));
    }
    for (std::size_t step = 0; step < after.size(); ++step) {
      for (std::size_t h = 0; h < after[step].histories.size(); ++h) {
        const Fp8History& history = after[step].histories[h];
        for (std::size_t o = 0; o < history.words.size(); ++o) {
          const std::vector<std::uint32_t>& words = history.words[o];
          ASSERT_EQ(words.size(), 3U) << "a scale's, and two of three steps";
          const std::uint32_t newest = words[2];
          EXPECT_GT(newest, 0U);
          std::uint32_t amax = newest;
          if (step > 0) {
            const std::vector<std::uint32_t>& before = after[step - 1].histories[h].words[o];
            EXPECT_EQ(words[1], before[2]);
            if (rule == Fp8HistoryRule::kMax) amax = std::max({amax, before[1], before[2]});
          }
          EXPECT_EQ(words[0], std::bit_cast<std::uint32_t>(2 * std::bit_cast<float>(amax)));
        }
      }
      if (step + 1 == after.size()) continue;
      // The weights' magnitudes of a step are those of the parameters that it begins with.
      for (const Fp8History& next : after[step + 1].histories) {
        const auto parameter =
            std::ranges::find(after[step].parameters, next.name, &FullParameter::name);
        ASSERT_NE(parameter, after[step].parameters.end());
        float amax = 0.0F;
        for (const float value : parameter->values) {
          amax = std::max(amax, std::abs(static_cast<float>(bfloat16(value))));
        }
        EXPECT_EQ(next.words[0][2], std::bit_cast<std::uint32_t>(amax)) << next.name;
      }
    }
  }
}

TEST(DelayedScaling, IsNotCurrentScaling) {
  SmallRun run = small_run();
  const SmallResult delayed = train(run);
  run.fp8.recipe = Fp8Recipe::kCurrent;
  const SmallResult current = train(run);
  EXPECT_NE(delayed.losses, current.losses);
  EXPECT_TRUE(current.histories.empty());
  EXPECT_NEAR(delayed.losses.back(), current.losses.back(), 0.1);
}

/// By hand: a rank's bytes.
TEST(DelayedScaling, MemoryAndTrafficAreTheFormulas) {
  for (const int ranks : {1, 2, 4}) {
    SmallRun run = small_run();
    run.ranks = ranks;
    run.fp8.history = 16;
    const Schedule delayed = plan_of(run);
    const std::int64_t tensors = 3 * 4 * 3;
    std::int64_t words = 0;
    for (const ScheduleBuffer& buffer : delayed.buffers) {
      const bool counts = buffer.role == Role::kHistory || buffer.role == Role::kMaxima;
      words += counts ? buffer.numel : 0;
      EXPECT_NE(buffer.role, Role::kScales);
    }
    EXPECT_EQ(words, tensors * 16 + tensors * (ranks == 1 ? 1 : 1 + ranks));
    EXPECT_EQ(count(delayed, operations::kRollHistory), 1);
    EXPECT_EQ(count(delayed, operations::kAllReduceMax), ranks == 1 ? 0 : 1);
    EXPECT_EQ(count(delayed, operations::kAmax), ranks == 1 ? 0 : 3);
    run.fp8.recipe = Fp8Recipe::kCurrent;
    const auto sent = [](const Schedule& schedule) {
      return account_traffic(schedule).sent_of(CollectiveKind::kAllGather);
    };
    // With current scaling ranks join words of the matrices alone.
    EXPECT_EQ(sent(delayed) - sent(plan_of(run)), (tensors - 3 * 4) * 4 * (ranks - 1));
  }
}

TEST(DelayedScaling, APlanIsAsItWas) {
  SmallRun run = small_run();
  run.ranks = 2;
  run.layers = 2;
  run.optimizer = "sgd";
  expect_golden("fp8_delayed_full_shard_2_ranks", plan_of(run),
                [](std::string_view text) { return parse_schedule(text); });
}

class HistoryRefusals : public testing::Test {
 protected:
  HistoryRefusals() : good_(plan_of(run())) { require_valid(good_); }

  static SmallRun run() {
    SmallRun run = small_run();
    run.ranks = 2;
    return run;
  }
  std::size_t first(const Operation& operation) const {
    return static_cast<std::size_t>(
        std::ranges::find(good_.actions, &operation, &Action::operation) - good_.actions.begin());
  }
  std::size_t first_with(BufferKind kind) const {
    const auto found = std::ranges::find_if(good_.actions, [&](const Action& action) {
      return action.operation->is_pass && good_.find(action.writes, kind) != nullptr;
    });
    return static_cast<std::size_t>(found - good_.actions.begin());
  }
  /// What is wrong with the schedule once `change` has been made, with waits that fit.
  std::string refusal(const std::function<void(Schedule&)>& change) const {
    Schedule bad = good_;
    change(bad);
    bad = synchronise(std::move(bad));
    const std::vector<Violation> violations = validate(bad);
    return violations.empty() ? "accepted" : violations.front().message;
  }
  static void erase(Schedule& schedule, std::size_t action) {
    schedule.actions.erase(schedule.actions.begin() + static_cast<std::ptrdiff_t>(action));
  }
  static void repeat(Schedule& schedule, std::size_t action, std::size_t at) {
    const Action again = schedule.actions[action];
    schedule.actions.insert(schedule.actions.begin() + static_cast<std::ptrdiff_t>(at), again);
  }

  const Schedule good_;
};

TEST_F(HistoryRefusals, AHistoryThatIsNeverMovedOnIsRefused) {
  EXPECT_THAT(refusal([&](Schedule& s) { erase(s, first(operations::kRollHistory)); }),
              HasSubstr("fp8.history is never moved on"));
}

TEST_F(HistoryRefusals, AHistoryThatIsMovedOnTwiceIsRefused) {
  const std::size_t roll = first(operations::kRollHistory);
  EXPECT_THAT(refusal([&](Schedule& s) { repeat(s, roll, roll + 1); }), HasSubstr("to which 0 of"));
}

TEST_F(HistoryRefusals, MagnitudesOfOneRankAreRefused) {
  EXPECT_THAT(refusal([&](Schedule& s) { erase(s, first(operations::kAllReduceMax)); }),
              HasSubstr("the maximum is still to be taken over shard"));
}

TEST_F(HistoryRefusals, ASumInPlaceOfAMaximumIsRefused) {
  EXPECT_THAT(refusal([&](Schedule& s) {
                s.actions[first(operations::kAllReduceMax)].operation = &operations::kAllReduce;
              }),
              HasSubstr("holds no gradient to be reduced"));
}

TEST_F(HistoryRefusals, AHistoryThatIsMovedOnBeforeTheLastPassIsRefused) {
  EXPECT_THAT(refusal([&](Schedule& s) {
                const std::size_t join = first(operations::kAllReduceMax);
                repeat(s, join, 0);
                erase(s, join + 1);
              }),
              HasSubstr("to which 0 of"));
  EXPECT_THAT(refusal([&](Schedule& s) { erase(s, first(operations::kAmax)); }),
              HasSubstr("actions have taken largest magnitudes"));
}

TEST_F(HistoryRefusals, APassThatReadsNoHistoryOrTakesNoMagnitudesIsRefused) {
  const std::size_t pass = first_with(BufferKind::kMaxima);
  EXPECT_THAT(refusal([&](Schedule& s) {
                std::erase_if(s.actions[pass].reads, [&](const Operand& o) {
                  return s.is_of_kind(o, BufferKind::kHistory);
                });
              }),
              HasSubstr("must read the histories of its layer"));
  EXPECT_THAT(refusal([&](Schedule& s) {
                std::erase_if(s.actions[pass].writes, [&](const Operand& o) {
                  return s.is_of_kind(o, BufferKind::kMaxima);
                });
              }),
              HasSubstr("must take the largest magnitudes of its layer"));
}

TEST_F(HistoryRefusals, AMatrixIsObservedOnce) {
  const std::size_t amax = first(operations::kAmax);
  EXPECT_THAT(refusal([&](Schedule& s) { repeat(s, amax, amax + 1); }), HasSubstr("again"));
}

TEST_F(HistoryRefusals, AnExecutorOfAnotherRecipeIsRefused) {
  SmallRun own = run();
  const Model model = make_gpt(small_gpt());
  const ModelLayout layout = layout_of(own, model);
  RandomTokens source(11, 61, true);
  own.fp8.recipe = Fp8Recipe::kCurrent;
  try {
    simulate(good_, layout, model, source, executor_options(own));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the executor's recipe of fp8 is current"));
  }
}

}  // namespace
}  // namespace tessera::test::delayed_scaling_test
