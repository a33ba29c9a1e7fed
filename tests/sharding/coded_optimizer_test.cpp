#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/schedule_json.h"

// AdamW with moments in 8 bits: the same bits however it is sharded and wherever its state is, the
// bytes that it keeps, and a loss near that of AdamW.
namespace tessera::test::coded_optimizer_test {
namespace {

using ::testing::HasSubstr;

SmallRun small_run(DType dtype) {
  SmallRun run{.optimizer = "adamw8bit", .dtype = dtype};
  run.stochastic_rounding = dtype == DType::kBFloat16;
  return run;
}

void expect_same(const SmallRun& run, const SmallResult& expected) {
  SCOPED_TRACE(concat(run.strategy, " on ", run.ranks, " ranks, ", run.micro_steps,
                      " micro-steps, host ", run.offload_optimizer, ", disk ", run.disk_optimizer));
  const SmallResult actual = train(run);
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.norms, expected.norms);
  EXPECT_TRUE(same_bits(actual.parameters, expected.parameters));
  EXPECT_EQ(actual.predicted, actual.measured);
  EXPECT_EQ(actual.predicted_host, actual.measured_host);
  EXPECT_EQ(actual.measured_disk, account_disk(actual.schedule));
  if (run.steps_in_flight == 1) {
    EXPECT_EQ(actual.predicted_traffic, actual.counted_traffic);
  }
  EXPECT_EQ(parse_schedule(to_string(actual.schedule)), actual.schedule);
  EXPECT_EQ(schedule_from_json(to_json(actual.schedule)), actual.schedule);
}

class CodedOptimizer : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Parameters, CodedOptimizer,
                         testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST_P(CodedOptimizer, GivesTheSameBitsHoweverItIsSharded) {
  int runs = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    SmallRun one = small_run(GetParam());
    one.strategy = "no_shard";
    one.micro_steps = ranks;
    const SmallResult expected = train(one);
    EXPECT_NE(expected.losses.back(), expected.losses.front());
    for (const char* const strategy : {"no_shard", "zero1", "zero2", "shard_grad_op", "full_shard",
                                       "hybrid_shard", "hybrid_full_optimizer"}) {
      ++runs;
      if (runs % 2 == 0 && ranks == 3) continue;
      SmallRun run = one;
      run.ranks = ranks;
      run.micro_steps = 1;
      run.strategy = strategy;
      run.policy.prefetch_forward = run.policy.prefetch_backward = runs % 3;
      if (runs % 5 == 4) run.wrap = {WrapPolicy::Kind::kNone};
      if (runs % 4 == 3) run.steps_in_flight = 2;
      if (runs % 3 == 2) run.delay_seed = runs;
      expect_same(run, expected);
    }
  }
}

TEST_P(CodedOptimizer, AlsoWithMicroStepsAndStateElsewhere) {
  SmallRun one = small_run(GetParam());
  one.strategy = "no_shard";
  one.micro_steps = 6;
  const SmallResult expected = train(one);
  for (const int ranks : {2, 3}) {
    SmallRun run = one;
    run.ranks = ranks;
    run.micro_steps = 6 / ranks;
    run.strategy = "zero2";
    expect_same(run, expected);
    run.offload_optimizer = 1.0;
    expect_same(run, expected);
    run.strategy = "full_shard";
    run.offload_optimizer = 0.0;
    run.disk_optimizer = 0.5;
    expect_same(run, expected);
    run.disk_optimizer = 1.0;
    run.policy.prefetch_disk = 0;
    expect_same(run, expected);
    run.disk_optimizer = 0.0;
    run.offload_parameters = 1.0;
    expect_same(run, expected);
  }
}

TEST(CodedOptimizerOfAdapters, GivesTheSameBitsHoweverItIsSharded) {
  SmallRun one = small_run(DType::kFloat32);
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

// Per element: 2 bytes of codes, and 8 for each block of 256; tensors and shards begin with one.
TEST(CodedOptimizerAccount, CountsCodesAndTheAbsmaxOfBlocks) {
  for (const int ranks : {1, 2, 3}) {
    SmallRun run = small_run(DType::kFloat32);
    run.ranks = ranks;
    const Model model = make_gpt(small_gpt());
    const ModelLayout layout = layout_of(run, model);
    const Schedule schedule = plan(layout, plan_options(run));
    for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
      const FlatParameter& flat = layout.units[static_cast<std::size_t>(u)].flats[0];
      EXPECT_EQ(flat.padded_numel % (256 * ranks), 0);
      for (const FlatTensor& tensor : flat.tensors) EXPECT_EQ(tensor.offset % 256, 0);
      std::int64_t bytes = 0;
      for (const ScheduleBuffer& buffer : schedule.buffers) {
        if (buffer.unit != u || buffer.role != Role::kOptimizer) continue;
        bytes += buffer.numel * static_cast<std::int64_t>(size_of(buffer.format));
        EXPECT_EQ(format_of(buffer), buffer.block == 1 ? "uint8" : "fp32/256");
      }
      const std::int64_t shard = flat.padded_numel / ranks;
      EXPECT_EQ(bytes, 2 * shard + 2 * 4 * shard / 256);
    }
  }
}

TEST(CodedOptimizerAccount, BlocksThatLieInTwoShardsAreRefused) {
  SmallRun run = small_run(DType::kFloat32);
  run.ranks = 2;
  const Model model = make_gpt(small_gpt());
  try {
    plan(make_layout(model, run.wrap, run.ranks), plan_options(run));
    ADD_FAILURE() << "was planned";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is not laid out for blocks of 256 elements"));
  }
  Schedule schedule = plan(layout_of(run, model), plan_options(run));
  EXPECT_TRUE(validate(schedule).empty());
  for (ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.block == 256) buffer.block = 1024;
  }
  const auto violations = validate(schedule);
  ASSERT_FALSE(violations.empty());
  EXPECT_THAT(violations.front().message, HasSubstr("blocks of 1024 elements"));
  for (ScheduleBuffer& buffer : schedule.buffers) {
    if (buffer.block == 1024) buffer.block = 0;
  }
  EXPECT_FALSE(validate(schedule).empty());
}

// Not the same function of the gradients, but near: see the numbers in the README.
TEST(CodedOptimizerLoss, StaysNearThatOfAdamW) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SmallRun run = small_run(dtype);
    run.steps = 80;
    const SmallResult coded = train(run);
    run.optimizer = "adamw";
    const SmallResult plain = train(run);
    EXPECT_LT(plain.losses.back(), plain.losses.front() - 0.5);
    EXPECT_NE(coded.losses, plain.losses);
    double difference = 0.0, sum = 0.0;
    for (std::size_t step = 0; step < plain.losses.size(); ++step) {
      difference = std::max(difference, std::abs(coded.losses[step] - plain.losses[step]));
      sum += coded.losses[step] - plain.losses[step];
    }
    EXPECT_LT(std::abs(sum) / 80, 0.001);
    EXPECT_LT(difference, 0.01);
  }
}

}  // namespace
}  // namespace tessera::test::coded_optimizer_test
