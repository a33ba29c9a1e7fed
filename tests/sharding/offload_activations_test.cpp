#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/schedule_edits.h"
#include "support/small_run.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule_json.h"

// Inputs of recomputed layers that wait for backward in the host's memory.
namespace tessera::test::offload_activations_test {
namespace {

using ::testing::HasSubstr;

constexpr int kBlocks = 3;  // of small_gpt()

SmallRun run_of(const std::string& strategy, int ranks, int micro_steps, DType dtype, int ahead) {
  SmallRun run{.ranks = ranks, .strategy = strategy, .steps = 2, .micro_steps = micro_steps};
  run.policy = {.recompute = Recompute::kFull, .prefetch_host = ahead};
  run.dtype = dtype;
  run.dropout = 0.1F;  // the masks of the recomputed forward are those of the first
  return run;
}

std::string name_of(const SmallRun& run) {
  return concat(run.strategy, ", ", run.ranks, " ranks, ", run.micro_steps, " micro-steps, ",
                to_string(run.dtype), ", ", run.policy.prefetch_host, " ahead, ",
                run.steps_in_flight, " in flight, optimizer ", run.offload_optimizer,
                ", parameters ", run.offload_parameters);
}

Schedule offloaded_plan(SmallRun run) {
  run.offload_activations = true;
  const Model model = make_gpt(small_gpt());
  const ModelLayout layout = make_layout(model, run.wrap, run.ranks);
  return plan(layout, plan_options(run, model, layout, RandomTokens(11, 61, true)));
}

void expect_same(const SmallResult& result, const SmallResult& expected) {
  EXPECT_EQ(result.losses, expected.losses);
  EXPECT_EQ(result.norms, expected.norms);
  EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
  EXPECT_EQ(result.measured, result.predicted);
  EXPECT_EQ(result.measured_host, result.predicted_host);
}

// Every strategy on 1, 2 and 3 ranks; the rest takes turns.
TEST(OffloadedActivations, GiveTheSameBitsAndTakeThePredictedBytesOfBothTiers) {
  int number = 0;
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 2, 3}) {
      ++number;
      SmallRun run = run_of(strategy.name, ranks, 1 + number % 2,
                            number % 3 == 0 ? DType::kFloat32 : DType::kBFloat16, number % 4);
      if (number % 5 == 0) run.offload_optimizer = 0.5;
      SCOPED_TRACE(name_of(run));
      const SmallResult expected = train(run);
      run.offload_activations = true;
      run.delay_seed = number;
      const SmallResult result = train(run);
      expect_same(result, expected);
      EXPECT_EQ(result.counted_traffic, result.predicted_traffic);

      // Blocks of which more than `ahead` layers lie before the end of the model.
      const int offloaded = std::max(0, kBlocks - run.policy.prefetch_host);
      const std::int64_t bytes = kSmallBatch * 11 * 14 * (run.dtype == DType::kFloat32 ? 4 : 2);
      const std::int64_t copied = offloaded * bytes * run.micro_steps;
      EXPECT_EQ(result.counted_traffic.to_host_bytes,
                expected.counted_traffic.to_host_bytes + copied);
      EXPECT_EQ(result.counted_traffic.to_device_bytes,
                expected.counted_traffic.to_device_bytes + copied);
      const auto kept = MemoryCategory::kActivations;
      EXPECT_EQ(result.measured_host.by_category[kept], offloaded * allocation_bytes(bytes));
      EXPECT_LE(result.measured.by_category[kept], expected.measured.by_category[kept]);
    }
  }
}

TEST(OffloadedActivations, GoWithEverythingElseThatWaitsOnTheHostUnderRandomDelays) {
  int number = 0;
  for (const std::string strategy : {"no_shard", "zero2", "full_shard", "hybrid_shard"}) {
    ++number;
    SmallRun run =
        run_of(strategy, 4, 2, number % 2 == 0 ? DType::kFloat32 : DType::kBFloat16, number % 2);
    run.steps = 3;
    const SmallResult expected = train(run);
    run.offload_activations = true;
    run.steps_in_flight = 2;
    run.delay_seed = 17;
    run.offload_optimizer = 1.0;
    if (strategy == "full_shard" || strategy == "no_shard") run.offload_parameters = 1.0;
    SCOPED_TRACE(name_of(run));
    const SmallResult result = train(run);
    expect_same(result, expected);
  }
}

TEST(OffloadedActivations, LeaveLessOnTheDeviceWithEveryLayer) {
  SmallRun run = run_of("no_shard", 1, 1, DType::kFloat32, 0);
  const auto kept = MemoryCategory::kActivations;
  const SmallResult all_stay = train(run);
  run.offload_activations = true;
  const SmallResult all_leave = train(run);
  // At the peak, in the last block's backward, its own input is back, and no other.
  const std::int64_t bytes = allocation_bytes(kSmallBatch * 11 * 14 * 4);
  EXPECT_EQ(all_stay.measured.by_category[kept] - all_leave.measured.by_category[kept],
            (kBlocks - 1) * bytes);
}

/// Seconds of a step on a virtual clock: each pass takes 1, each copy `copy`.
double step_seconds(int ahead, bool offloaded, double copy) {
  SmallRun run = run_of("no_shard", 1, 1, DType::kFloat32, ahead);
  run.offload_activations = offloaded;
  const Model model = make_gpt(small_gpt());
  const RandomTokens source(11, 61, true);
  const ModelLayout layout = make_layout(model, run.wrap, run.ranks);
  const Schedule schedule = plan(layout, plan_options(run, model, layout, source));
  ExecutorOptions options;
  options.micro_batch = kSmallBatch;
  options.cost = [copy](const Schedule&, const Action& action) {
    if (action.operation->is_pass) return 1.0;
    return action.operation == &operations::kCopy ? copy : 0.0;
  };
  double end = 0.0;
  for (const ActionSpan& span : simulate(schedule, layout, model, source, options).spans) {
    end = std::max(end, span.end);
  }
  return end;
}

// Forward and backward of the embedding and the blocks, and the loss.
TEST(OffloadedActivations, HideTheirCopiesBehindAsManyPassesAsArePrefetched) {
  constexpr double kPasses = 2 * (kBlocks + 1) + 1;
  EXPECT_DOUBLE_EQ(step_seconds(1, false, 0.5), kPasses);
  EXPECT_DOUBLE_EQ(step_seconds(1, true, 0.5), kPasses);
  EXPECT_DOUBLE_EQ(step_seconds(1, true, 1.0), kPasses);
  EXPECT_DOUBLE_EQ(step_seconds(0, true, 0.5), kPasses + kBlocks * 2 * 0.5);
}

TEST(OffloadedActivations, PlansReadBackWithSnapshotsAndAddGradientsAsBefore) {
  for (const int ahead : {0, 1, 2, 3}) {
    for (const std::string strategy : {"zero1", "full_shard"}) {
      SmallRun run = run_of(strategy, 2, 2, DType::kBFloat16, ahead);
      SCOPED_TRACE(name_of(run));
      const Schedule schedule = offloaded_plan(run);
      const Schedule snapshot = with_snapshot(schedule, false);
      for (const Schedule* const s : {&schedule, &snapshot}) {
        for (const Violation& violation : validate(*s)) ADD_FAILURE() << violation.message;
        EXPECT_EQ(parse_schedule(to_string(*s)), *s);
        EXPECT_EQ(schedule_from_json(to_json(*s)), *s);
      }
      const Model model = make_gpt(small_gpt());
      const Schedule without = plan(make_layout(model, run.wrap, 2), plan_options(run));
      EXPECT_EQ(hash_of(gradient_sums(schedule)), hash_of(gradient_sums(without)));
      if (ahead == kBlocks) {
        EXPECT_EQ(schedule.buffers, without.buffers);
        EXPECT_EQ(schedule.actions, without.actions);
      }
    }
  }
}

TEST(OffloadedActivations, NeedLayersThatKeepNothingButTheirInput) {
  SmallRun run = run_of("zero1", 2, 1, DType::kFloat32, 1);
  run.policy.recompute = Recompute::kSelective;
  try {
    offloaded_plan(run);
    FAIL() << "planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("use `policy.recompute` full"));
  }
}

/// One action of a valid plan is changed.
class ABrokenOffload : public testing::Test {
 protected:
  int find(const Operation& operation, Lane lane, int number = 0) const {
    for (int i = 0; i < static_cast<int>(schedule_.actions.size()); ++i) {
      const Action& action = schedule_.actions[static_cast<std::size_t>(i)];
      if (action.operation == &operation && action.lane == lane && number-- == 0) return i;
    }
    return -1;
  }
  Action& at(int index) { return schedule_.actions[static_cast<std::size_t>(index)]; }
  std::string refusal() const {
    const std::vector<Violation> violations = validate(schedule_);
    return violations.empty() ? "nothing" : violations.front().message;
  }
  Schedule schedule_ = offloaded_plan(run_of("no_shard", 1, 2, DType::kFloat32, 1));
};

TEST_F(ABrokenOffload, ThatReadsAnInputBeforeItIsBackIsRefused) {
  const int backward = find(operations::kBackward, Lane::kCompute, 1);
  ASSERT_EQ(schedule_.name_of(at(backward).reads.back().buffer), "d.h.1.m0");
  std::erase_if(at(backward).waits, [&](int wait) { return at(wait).lane == Lane::kCopyIn; });
  EXPECT_THAT(refusal(), HasSubstr("reads x.h.1.m0 without waiting"));
}

TEST_F(ABrokenOffload, ThatGivesBackWhatIsStillBeingCopiedIsRefused) {
  at(find(operations::kRelease, Lane::kCompute)).waits.clear();
  EXPECT_THAT(refusal(), HasSubstr("writes x.h.0.m0 without waiting"));
}

TEST_F(ABrokenOffload, ThatCopiesToAnotherLayersBufferIsRefused) {
  Action& first = at(find(operations::kCopy, Lane::kCopyOut, 0));
  std::swap(first.writes, at(find(operations::kCopy, Lane::kCopyOut, 1)).writes);
  EXPECT_THAT(refusal(), HasSubstr("to another buffer than its layer's on the host"));
}

TEST_F(ABrokenOffload, ThatBringsBackWhatNeverLeftIsRefused) {
  Action& reserve = at(find(operations::kReserve, Lane::kCompute));
  reserve.operation = &operations::kRelease;
  EXPECT_THAT(refusal(), HasSubstr("has no copy on the host, or no memory"));
}

TEST_F(ABrokenOffload, ThatTakesMemoryOnAnotherLaneIsRefused) {
  at(find(operations::kReserve, Lane::kCompute)).lane = Lane::kGather;
  EXPECT_THAT(refusal(), HasSubstr("layers run on the compute lane"));
}

TEST_F(ABrokenOffload, ThatBringsBackAnotherInputIsRefused) {
  Action& back = at(find(operations::kCopy, Lane::kCopyIn));
  EXPECT_EQ(schedule_.name_of(back.reads.front().buffer), "h.1.input@host");
  back.reads.front().buffer = schedule_.input_on_host(1);
  EXPECT_THAT(refusal(), HasSubstr("from or to another buffer than its layer's on the host"));
}

}  // namespace
}  // namespace tessera::test::offload_activations_test
