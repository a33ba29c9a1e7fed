#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/schedule_edits.h"
#include "support/small_run.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule_json.h"

// Optimizer state in host memory: gradients go there, the optimizer runs there, and parameters come
// back.
namespace tessera::test::offload_test {
namespace {

using ::testing::HasSubstr;

std::string name_of(const SmallRun& run) {
  return concat(run.strategy, ", ", run.ranks, " ranks, ", run.micro_steps, " micro-steps, ",
                to_string(run.dtype), run.stochastic_rounding ? " rounded at random" : "",
                ", share ", run.offload_optimizer, " and ", run.offload_parameters, ", ",
                run.steps_in_flight, " in flight");
}

/// Whether parameters are sharded as the optimizer's state is.
bool may_offload_parameters(const SmallRun& run) {
  const PlanOptions options = plan_options(run);
  const Placement placement = ShardNesting(options.mesh, options.placement).placement();
  return placement.parameter == placement.optimizer;
}

/// Every strategy on 1, 2 and 3 ranks; accumulation and dtypes take turns.
std::vector<SmallRun> runs() {
  std::vector<SmallRun> all;
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 2, 3}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        all.push_back({.ranks = ranks,
                       .replicas = ranks == 2 && strategy.hybrid ? 2 : 0,
                       .strategy = strategy.name,
                       .steps = 2,
                       .micro_steps = 1 + static_cast<int>(all.size() % 2),
                       .dtype = dtype,
                       .stochastic_rounding = dtype == DType::kBFloat16 && all.size() % 3 == 0});
      }
    }
  }
  return all;
}

/// Elements of this rank's optimizer shards that are on the host.
std::int64_t offloaded_numel(const Schedule& schedule) {
  std::int64_t numel = 0;
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.role == Role::kMaster && buffer.tier == Tier::kHost) numel += buffer.numel;
  }
  return numel;
}

TEST(Offload, GivesTheSameBitsAndTakesThePredictedBytesOfBothTiers) {
  for (SmallRun run : runs()) {
    const SmallResult expected = train(run);
    EXPECT_EQ(expected.measured_host.total, 0);
    EXPECT_EQ(expected.counted_traffic.to_host_bytes, 0);
    for (const double share : {1.0, 0.5}) {
      run.offload_optimizer = share;
      SCOPED_TRACE(name_of(run));
      const SmallResult result = train(run);
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.norms, expected.norms);
      EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
      EXPECT_EQ(result.measured, result.predicted);
      EXPECT_EQ(result.measured_host, result.predicted_host);
      EXPECT_EQ(result.counted_traffic, result.predicted_traffic);
      EXPECT_EQ(result.counted_traffic.sent_bytes, expected.counted_traffic.sent_bytes);

      // Master weights, two moments and the gradient in fp32, and parameters on their way back.
      const std::int64_t numel = offloaded_numel(result.schedule);
      const std::int64_t width = run.dtype == DType::kFloat32 ? 4 : 2;
      EXPECT_EQ(result.measured_host.total, numel * (width == 2 ? 18 : 16));
      EXPECT_EQ(result.counted_traffic.to_host_bytes, numel * 4);
      EXPECT_EQ(result.counted_traffic.to_device_bytes, numel * width);
      const auto saved = MemoryCategory::kOptimizer;
      EXPECT_EQ(expected.measured.by_category[saved] - result.measured.by_category[saved],
                numel * (width == 2 ? 12 : 8));
    }
  }
}

TEST(Offload, UpdatesRunBesideTheNextStepWithTheSameBitsUnderRandomDelays) {
  bool half = false;
  for (const Strategy& strategy : strategies()) {
    half = !half;
    SmallRun run{.ranks = 3, .strategy = strategy.name, .steps = 4};
    run.dtype = half ? DType::kBFloat16 : DType::kFloat32;
    const SmallResult expected = train(run);
    run.offload_optimizer = half ? 0.5 : 1.0;
    run.steps_in_flight = 2;
    run.delay_seed = 11;
    SCOPED_TRACE(name_of(run));
    const SmallResult result = train(run);
    EXPECT_EQ(result.losses, expected.losses);
    EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
    EXPECT_EQ(result.measured, result.predicted);
    EXPECT_EQ(result.measured_host, result.predicted_host);
  }
}

// Two units at least, so that both a whole copy of the parameters and a part of them are tried.
TEST(Offload, ParametersOnTheHostGiveTheSameBitsAndTakeThePredictedBytes) {
  int tried = 0;
  for (SmallRun run : runs()) {
    run.policy.prefetch_host = static_cast<int>(tried % 3);
    run.steps_in_flight = 1 + tried % 2;
    if (!may_offload_parameters(run)) {
      run.offload_parameters = 1.0;
      const Model model = make_gpt(small_gpt());
      EXPECT_THROW(plan(make_layout(model, run.wrap, run.ranks), plan_options(run)), Error);
      continue;
    }
    const SmallResult expected = train(run);
    for (const double share : {1.0, 0.5}) {
      run.offload_parameters = share;
      run.offload_optimizer = share == 1.0 ? 0.0 : 0.75;
      run.delay_seed = 5;
      ++tried;
      SCOPED_TRACE(name_of(run));
      const SmallResult result = train(run);
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.norms, expected.norms);
      EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
      EXPECT_EQ(result.measured, result.predicted);
      EXPECT_EQ(result.measured_host, result.predicted_host);
      EXPECT_EQ(result.counted_traffic, result.predicted_traffic);
      EXPECT_EQ(result.counted_traffic.sent_bytes, expected.counted_traffic.sent_bytes);
      const auto kept = MemoryCategory::kParameters;
      EXPECT_LT(result.measured.by_category[kept], expected.measured.by_category[kept]);
      if (share == 1.0) {
        EXPECT_EQ(result.measured.by_category[kept], 0);
        EXPECT_EQ(result.measured.by_category[MemoryCategory::kOptimizer], 0);
      }
    }
  }
  EXPECT_GT(tried, 20);
}

// Nothing else goes to the device: what the optimizer has updated stays on the host.
TEST(Offload, ParametersOnTheHostAreCopiedWhereverTheyAreUnsharded) {
  for (const std::string strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    for (const int micro_steps : {1, 2}) {
      SmallRun run{.ranks = 2, .strategy = strategy, .micro_steps = micro_steps};
      run.offload_parameters = 1.0;
      SCOPED_TRACE(name_of(run));
      const Model model = make_gpt(small_gpt());
      const Schedule schedule = plan(make_layout(model, run.wrap, run.ranks), plan_options(run));
      std::int64_t copied = 0;
      for (const Action& action : schedule.actions) {
        if (action.lane != Lane::kCompute) continue;
        for (const Operand& operand : action.reads) {  // none of the state: it is on the host
          EXPECT_TRUE(schedule.role(operand.buffer) != Role::kParameter ||
                      schedule.buffer(operand).is_slot());
        }
        if (action.operation != &operations::kReshard) continue;
        const int unit = action.writes.front().unit;  // once for each time that it was there
        copied +=
            schedule.unit_numel(unit, Role::kParameter) / (strategy == "no_shard" ? 1 : 2) * 4;
      }
      EXPECT_GT(copied, 0);
      EXPECT_EQ(account_traffic(schedule).to_device_bytes, copied);
    }
  }
}

TEST(Offload, PlansReadBackAndDescribeTheStateThatTheyWereMadeFor) {
  for (SmallRun run : runs()) {
    for (const double share : {1.0, 0.5, 0.25}) {
      run.offload_optimizer = share;
      run.offload_parameters = share < 0.5 && may_offload_parameters(run) ? 0.5 : 0.0;
      SCOPED_TRACE(name_of(run));
      const Model model = make_gpt(small_gpt());
      const ModelLayout layout = make_layout(model, run.wrap, run.ranks);
      const Schedule schedule = plan(layout, plan_options(run));
      const Schedule snapshot = with_snapshot(schedule, run.stochastic_rounding);
      for (const Schedule* const s : {&schedule, &snapshot}) {
        for (const Violation& violation : validate(*s)) ADD_FAILURE() << violation.message;
        EXPECT_EQ(parse_schedule(to_string(*s)), *s);
        EXPECT_EQ(schedule_from_json(to_json(*s)), *s);
        const std::vector<ScheduleBuffer> state = state_buffers(layout, state_options(*s));
        EXPECT_TRUE(std::ranges::equal(state, std::span(s->buffers).first(state.size())));
      }
      run.offload_optimizer = run.offload_parameters = 0.0;
      EXPECT_EQ(hash_of(gradient_sums(schedule)),
                hash_of(gradient_sums(plan(layout, plan_options(run)))));
    }
  }
}

}  // namespace
}  // namespace tessera::test::offload_test
