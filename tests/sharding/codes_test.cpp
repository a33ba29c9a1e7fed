#include <gmock/gmock.h>

#include <array>
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

// Matrices of products in fp8 that are gathered as codes: the same bits as gathered in bf16,
// however they are sharded, half the bytes, and no schedule whose scales are not those of the
// codes.
namespace tessera::test::codes_test {
namespace {

using ::testing::HasSubstr;

SmallRun small_run(GatherFormat format = GatherFormat::kE4M3) {
  return {.dtype = DType::kBFloat16, .fp8 = {.enabled = true, .gather_format = format}};
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

void expect_same(const SmallResult& actual, const SmallResult& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.norms, expected.norms);
  EXPECT_TRUE(same_bits(actual.parameters, expected.parameters));
}

TEST(Codes, GiveTheBitsOfGathersInBf16) {
  int runs = 0;
  for (const int ranks : {2, 3, 4}) {
    SmallRun one = small_run(GatherFormat::kBf16);
    one.strategy = "no_shard";
    one.micro_steps = ranks;
    one.steps = 2;
    const SmallResult expected = train(one);
    for (const Strategy& strategy : strategies()) {
      ++runs;
      if (strategy.hybrid && ranks != 4) continue;
      const bool gathers = strategy.placement.parameter.contains(Axis::kShard);
      if (!runs_ci_tests() && (!gathers || runs % 3 == 2)) continue;
      SmallRun run = small_run();
      run.ranks = ranks;
      run.steps = 2;
      run.strategy = strategy.name;
      run.policy.recompute = std::array{Recompute::kNone, Recompute::kFull,
                                        Recompute::kSelective}[static_cast<std::size_t>(runs % 3)];
      run.policy.prefetch_forward = run.policy.prefetch_backward = runs % 4 % 3;
      run.fp8.scale_units = 1 + runs % 3;
      if (runs % 5 == 4) run.wrap = {WrapPolicy::Kind::kNone};
      if (runs % 4 == 3) run.steps_in_flight = 2;
      if (runs % 2 == 0) run.delay_seed = runs;
      SCOPED_TRACE(concat(strategy.name, " on ", ranks));
      const SmallResult actual = train(run);
      expect_same(actual, expected);
      expect_as_planned(actual, run);
      const bool is_cut = !actual.schedule.placement.parameter.empty();
      EXPECT_EQ(count(actual.schedule, operations::kEncode) > 0, is_cut);
    }
  }
}

TEST(Codes, ScalesThatAreExactGiveTheSameBitsToo) {
  SmallRun run = small_run(GatherFormat::kBf16);
  run.ranks = 3;
  run.fp8.scales = Fp8Scales::kExact;
  const SmallResult expected = train(run);
  run.fp8.gather_format = GatherFormat::kE4M3;
  expect_same(train(run), expected);
}

/// Units whose parameters are on the host are gathered in bf16, others as codes.
TEST(Codes, OffloadingAndStagesGiveTheSameBits) {
  SmallRun run = small_run(GatherFormat::kBf16);
  run.ranks = 2;
  run.micro_steps = 2;
  run.steps = 2;
  const SmallResult expected = train(run);
  int mixed = 0;
  for (const int tiers : {0, 1, 2}) {
    SmallRun own = small_run();
    own.ranks = 2;
    own.micro_steps = 2;
    own.steps = 2;
    if (tiers == 0) own.offload_parameters = 0.5;
    if (tiers == 1) own.offload_optimizer = own.offload_gradients = 1.0;
    if (tiers == 2) own.disk_parameters = 0.5;
    SCOPED_TRACE(tiers);
    const SmallResult actual = train(own);
    expect_same(actual, expected);
    expect_as_planned(actual, own);
    const ScaleTable table(actual.schedule);
    mixed += std::ssize(table.entries()) < own.layers ? 1 : 0;
    EXPECT_FALSE(table.entries().empty());
  }
  EXPECT_EQ(mixed, 2);
  run.tied_apart = true;
  const SmallResult apart = train(run);
  for (const GatherFormat format : {GatherFormat::kE4M3, GatherFormat::kBf16}) {
    SmallRun stages = small_run(format);
    stages.ranks = 2;
    stages.micro_steps = 2;
    stages.steps = 2;
    stages.first_layers = {0, 2};
    const SmallResult actual = train(stages);
    expect_same(actual, apart);
    for (const StageResult& stage : actual.stages) {
      EXPECT_EQ(stage.predicted, stage.measured);
      EXPECT_EQ(stage.predicted_traffic, stage.counted_traffic);
    }
  }
}

TEST(Codes, AFrozenBaseIsGatheredAsCodes) {
  SmallRun run = small_run(GatherFormat::kBf16);
  run.ranks = 2;
  run.adapter = {.kind = LoraOptions{.rank = 3, .alpha = 6.0}, .target_pattern = "all-linear"};
  run.trainable_strategy = "zero1";
  const SmallResult expected = train(run);
  run.fp8.gather_format = GatherFormat::kE4M3;
  const SmallResult actual = train(run);
  expect_same(actual, expected);
  expect_as_planned(actual, run);
  EXPECT_GT(count(actual.schedule, operations::kEncode), 0);
}

/// By hand: bytes that a rank sends in gathers, and what scales add.
TEST(Codes, TakeHalfTheBytes) {
  for (const int ranks : {2, 4}) {
    SmallRun run = small_run();
    run.ranks = ranks;
    run.layers = 3;
    run.policy = {.prefetch_forward = 0, .prefetch_backward = 0};
    run.fp8.scale_units = 2;
    const Schedule in_codes = plan_of(run);
    run.fp8.gather_format = GatherFormat::kBf16;
    const Schedule in_bf16 = plan_of(run);
    const auto sent = [](const Schedule& schedule) {
      return account_traffic(schedule).sent_of(CollectiveKind::kAllGather);
    };
    std::int64_t matrices = 0;  // elements, with padding
    for (const ScheduleUnit& unit : in_bf16.units) {
      for (const ScheduleFlat& flat : unit.flats) matrices += flat.has_codes() ? flat.numel : 0;
    }
    // Blocks are gathered twice, but for the last one, whose backward follows its forward.
    const std::int64_t last = in_bf16.units[3].flats[1].numel;
    const std::int64_t elements = (2 * matrices - last) * (ranks - 1) / ranks;
    const std::int64_t words = 3 * 4;
    EXPECT_EQ(sent(in_codes), sent(in_bf16) - elements + words * 4 * (ranks - 1));
    EXPECT_EQ(count(in_codes, operations::kAllReduceMax), 2);
    EXPECT_EQ(count(in_codes, operations::kAmax), 3);
    EXPECT_EQ(count(in_codes, operations::kEncode), 5);
    std::int64_t slots = 0, scales = 0;
    for (const ScheduleBuffer& buffer : in_codes.buffers) {
      if (buffer.role == Role::kScales) scales += buffer.numel;
      if (buffer.role != Role::kCode) continue;
      EXPECT_EQ(buffer.format, DType::kUInt8);
      slots += buffer.numel;
    }
    EXPECT_EQ(scales, words * (1 + ranks));
    EXPECT_EQ(slots, last + last / ranks) << "one slot, and one for a shard";
  }
}

TEST(Codes, APlanIsAsItWas) {
  SmallRun run = small_run();
  run.ranks = 2;
  run.layers = 2;
  run.optimizer = "sgd";
  run.policy = {.prefetch_forward = 1, .prefetch_backward = 1};
  expect_golden("fp8_full_shard_2_ranks", plan_of(run),
                [](std::string_view text) { return parse_schedule(text); });
}

TEST(Codes, NothingIsGatheredAsCodesWhereLayersReadMore) {
  SmallRun run = small_run();
  run.ranks = 2;
  EXPECT_GT(count(plan_of(run), operations::kEncode), 0);
  run.fp8.products.input_gradient = false;
  EXPECT_EQ(count(plan_of(run), operations::kEncode), 0);
  run = small_run();
  run.ranks = 2;
  run.strategy = "zero2";
  EXPECT_EQ(count(plan_of(run), operations::kEncode), 0);
  run.strategy = "full_shard";
  run.fp8.bf16_blocks = {.first = 1, .last = 0};
  EXPECT_EQ(std::ssize(ScaleTable(plan_of(run)).entries()), 2);
}

class Refusals : public testing::Test {
 protected:
  Refusals() : good_(plan_of(run())) { require_valid(good_); }

  static SmallRun run() {
    SmallRun run = small_run();
    run.ranks = 2;
    run.fp8.scale_units = 2;
    return run;
  }
  std::size_t first(const Operation& operation) const {
    return static_cast<std::size_t>(
        std::ranges::find(good_.actions, &operation, &Action::operation) - good_.actions.begin());
  }
  /// What is wrong with the schedule once `change` has been made, with waits that fit.
  std::string refusal(const std::function<void(Schedule&)>& change) const {
    Schedule bad = good_;
    change(bad);
    bad = synchronise(std::move(bad));
    const std::vector<Violation> violations = validate(bad);
    return violations.empty() ? "accepted" : violations.front().message;
  }
  static void move(Schedule& schedule, std::size_t from, std::size_t to) {
    const Action action = schedule.actions[from];
    schedule.actions.erase(schedule.actions.begin() + static_cast<std::ptrdiff_t>(from));
    schedule.actions.insert(schedule.actions.begin() + static_cast<std::ptrdiff_t>(to), action);
  }

  const Schedule good_;
};

TEST_F(Refusals, ALocalScaleIsRefused) {
  EXPECT_THAT(refusal([&](Schedule& s) {
                s.actions.erase(s.actions.begin() +
                                static_cast<std::ptrdiff_t>(first(operations::kAllReduceMax)));
              }),
              HasSubstr("the maximum is still to be taken over shard"));
}

TEST_F(Refusals, CodesMadeBeforeTheMaximumAreRefused) {
  EXPECT_THAT(refusal([&](Schedule& s) {
                move(s, first(operations::kEncode), first(operations::kAllReduceMax));
              }),
              HasSubstr("the maximum is still to be taken over shard"));
}

TEST_F(Refusals, ASumInPlaceOfAMaximumIsRefused) {
  EXPECT_THAT(refusal([&](Schedule& s) {
                s.actions[first(operations::kAllReduceMax)].operation = &operations::kAllReduce;
              }),
              HasSubstr("holds no gradient to be reduced"));
}

TEST_F(Refusals, ScalesThatAreMissingAreRefused) {
  EXPECT_THAT(refusal([&](Schedule& s) {
                s.actions.erase(s.actions.begin() +
                                static_cast<std::ptrdiff_t>(first(operations::kAmax) + 1));
              }),
              HasSubstr("in which scales are missing"));
}

TEST_F(Refusals, AStaleScaleIsRefused) {
  EXPECT_THAT(
      refusal([&](Schedule& s) {  // of a gather after the update
        const auto encode = static_cast<std::ptrdiff_t>(first(operations::kEncode));
        std::vector<Action> again(s.actions.begin() + encode, s.actions.begin() + encode + 2);
        s.actions.insert(s.actions.end(), again.begin(), again.end());
        s.actions.push_back({.operation = &operations::kReshard, .writes = again.back().writes});
      }),
      HasSubstr("whose scales are of parameters before their update"));
}

TEST_F(Refusals, APassWithoutTheScalesOfItsCodesIsRefused) {
  const auto reads_scales = [&](const Action& action) {
    return action.operation->is_pass && std::ranges::any_of(action.reads, [&](const Operand& o) {
             return good_.role(o.buffer) == Role::kScales;
           });
  };
  const auto pass = std::ranges::find_if(good_.actions, reads_scales) - good_.actions.begin();
  EXPECT_THAT(refusal([&](Schedule& s) {
                std::erase_if(s.actions[static_cast<std::size_t>(pass)].reads,
                              [&](const Operand& o) { return s.role(o.buffer) == Role::kScales; });
              }),
              HasSubstr("must read the scales of"));
  EXPECT_THAT(refusal([&](Schedule& s) {
                for (Operand& o : s.actions[static_cast<std::size_t>(pass)].reads) {
                  if (s.role(o.buffer) == Role::kScales) o.buffer = s.find("scales.1");
                }
              }),
              HasSubstr("must read the scales of"));
}

TEST_F(Refusals, AnExecutorWithoutFp8IsRefused) {
  SmallRun own = run();
  const Model model = make_gpt(small_gpt());
  const ModelLayout layout = layout_of(own, model);
  RandomTokens source(11, 61, true);
  ExecutorOptions options = executor_options(own);
  options.fp8 = {};
  try {
    simulate(good_, layout, model, source, options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is planned to read"));
  }
}

}  // namespace
}  // namespace tessera::test::codes_test
