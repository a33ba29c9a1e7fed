#include <gtest/gtest.h>

#include <array>

#include "support/small_layout.h"
#include "support/small_run.h"
#include "tessera/core/error.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule_json.h"

// Adapters beside a quantised base: the same bits as beside a base of the weights that it stands
// for, however it is sharded, and the bytes that it takes and sends.
namespace tessera::test::quantized_base_test {
namespace {

using Param = std::tuple<WeightFormat, DType>;

/// All but nf4 are of a family that joins matrices, which end within a block here.
SmallRun small_run(const Param& param) {
  const auto [format, dtype] = param;
  SmallRun run{.dtype = dtype,
               .family = format == WeightFormat::kNf4 ? GptFamily::kGpt2 : GptFamily::kLlama,
               .adapter = {.kind = LoraOptions{.rank = 3, .alpha = 6.0, .dropout = 0.1F},
                           .target_pattern = "all-linear"},
               .trainable_strategy = "zero1",
               .base_format = format};
  return run;
}

/// As a frozen base of `dtype` keeps them; adapters are fp32 in either.
std::vector<FullParameter> as_kept(std::vector<FullParameter> parameters, DType dtype) {
  for (FullParameter& parameter : parameters) {
    if (dtype == DType::kFloat32 || parameter.name.find("lora_") != std::string::npos) continue;
    for (float& value : parameter.values) {
      value = dtype == DType::kBFloat16 ? static_cast<float>(bfloat16(value))
                                        : static_cast<float>(float16(value));
    }
  }
  return parameters;
}

class QuantizedBase : public testing::TestWithParam<Param> {};

TEST_P(QuantizedBase, GivesTheSameBitsHoweverItIsSharded) {
  int runs = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    SmallRun one = small_run(GetParam());
    one.strategy = "no_shard";
    one.micro_steps = ranks;
    const SmallResult expected = train(one);
    EXPECT_NE(expected.losses.back(), expected.losses.front());
    if (ranks == 1) {
      SmallRun plain = one;  // of the weights that the codes stand for
      plain.base_format = WeightFormat::kNone;
      SmallRun none = one;
      none.steps = 0;
      plain.initial = train(none).parameters;
      const SmallResult same = train(plain);
      EXPECT_EQ(same.losses, expected.losses);
      EXPECT_EQ(same.norms, expected.norms);
      EXPECT_TRUE(same_bits(same.parameters, as_kept(expected.parameters, one.dtype)));
    }
    for (const char* const strategy : {"no_shard", "shard_grad_op", "full_shard", "hybrid_shard"}) {
      for (const char* const trainable : {"", "zero1"}) {
        if (*trainable == '\0' && ranks == 3) continue;
        SmallRun run = one;
        run.ranks = ranks;
        run.micro_steps = 1;
        run.strategy = strategy;
        run.trainable_strategy = trainable;
        run.policy.recompute = runs % 2 == 0 ? Recompute::kFull : Recompute::kNone;
        run.policy.prefetch_forward = run.policy.prefetch_backward = runs % 3;
        if (runs % 5 == 4) run.wrap = {WrapPolicy::Kind::kNone};
        if (runs % 4 == 3) run.steps_in_flight = 2;
        if (runs % 3 == 2) run.delay_seed = runs;
        run.offload_parameters =
            std::array{0.0, 1.0, 0.0, 0.5, 0.0}[static_cast<std::size_t>(runs % 5)];
        run.disk_parameters = runs % 7 == 2 ? 1.0 : runs % 7 == 5 ? 0.5 : 0.0;
        ++runs;
        SCOPED_TRACE(concat(strategy, " and '", trainable, "' on ", ranks, " ranks"));
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
    }
  }
  EXPECT_EQ(runs, 28);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedBase,
                         testing::Values(Param{WeightFormat::kNf4, DType::kFloat32},
                                         Param{WeightFormat::kNf4, DType::kBFloat16},
                                         Param{WeightFormat::kFp4, DType::kFloat32},
                                         Param{WeightFormat::kInt8, DType::kBFloat16},
                                         Param{WeightFormat::kNf4Double, DType::kBFloat16},
                                         Param{WeightFormat::kFp4, DType::kFloat16}),
                         [](const auto& test) {
                           std::string name = concat(to_string(std::get<0>(test.param)), "_",
                                                     to_string(std::get<1>(test.param)));
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// Where parts of a run are from step to step.
struct Tiers {
  Tier parameters = Tier::kDevice, optimizer = Tier::kDevice, activations = Tier::kDevice;
};

std::vector<Tiers> all_tiers(Recompute recompute) {
  std::vector<Tiers> all;
  for (const Tier parameters : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    for (const Tier optimizer : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      all.push_back({parameters, optimizer});
      if (recompute == Recompute::kFull) all.push_back({parameters, optimizer, Tier::kHost});
    }
  }
  return all;
}

class QuantizedBaseOffload : public testing::TestWithParam<WeightFormat> {};

// Every tier of parameters, optimizer state and layers' inputs beside every recomputation.
TEST_P(QuantizedBaseOffload, GivesTheSameBitsFromEveryTier) {
  SmallRun run = small_run({GetParam(), DType::kBFloat16});
  run.steps = 2;
  SmallRun one = run;
  one.micro_steps = 2;
  const SmallResult expected = train(one);
  run.ranks = 2;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const Tiers& tiers : all_tiers(recompute)) {
      SmallRun other = run;
      other.policy.recompute = recompute;
      other.offload_parameters = tiers.parameters == Tier::kHost ? 1.0 : 0.0;
      other.disk_parameters = tiers.parameters == Tier::kDisk ? 1.0 : 0.0;
      other.offload_optimizer = tiers.optimizer == Tier::kHost ? 1.0 : 0.0;
      other.disk_optimizer = tiers.optimizer == Tier::kDisk ? 1.0 : 0.0;
      other.offload_activations = tiers.activations == Tier::kHost;
      SCOPED_TRACE(concat("recompute ", to_string(recompute), ", parameters ",
                          to_string(tiers.parameters), ", optimizer ", to_string(tiers.optimizer),
                          ", activations ", to_string(tiers.activations)));
      const SmallResult actual = train(other);
      EXPECT_EQ(actual.losses, expected.losses);
      EXPECT_EQ(actual.norms, expected.norms);
      EXPECT_TRUE(same_bits(actual.parameters, expected.parameters));
      EXPECT_EQ(actual.predicted, actual.measured);
      EXPECT_EQ(actual.predicted_host, actual.measured_host);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedBaseOffload,
                         testing::Values(WeightFormat::kNone, WeightFormat::kNf4,
                                         WeightFormat::kNf4Double, WeightFormat::kFp4,
                                         WeightFormat::kFp4Double, WeightFormat::kInt8),
                         [](const auto& test) {
                           std::string name(to_string(test.param));
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Of the third block: nf4 takes half a byte for an element and four for each 64 of them.
TEST(QuantizedBaseAccount, CountsPackedBytesAndWhatIsDecoded) {
  SmallRun run = small_run({WeightFormat::kNf4, DType::kFloat32});
  run.ranks = 2;
  run.steps = 1;
  run.policy.prefetch_forward = run.policy.prefetch_backward = 1;
  const SmallResult result = train(run);
  const Schedule& schedule = result.schedule;
  const auto packed = [](std::int64_t numel) {
    const std::int64_t bytes = (numel + 1) / 2 + 3;
    return (bytes / 4 * 4 + 4 * ((numel + 63) / 64) + 63) / 64 * 64;
  };
  const std::int64_t width = 14;
  const std::int64_t bytes =
      packed(3 * width * width) + packed(width * width) + 2 * packed(4 * width * width);
  const std::int64_t padded = (bytes + 127) / 128 * 128;
  for (const std::size_t block : {1U, 2U, 3U}) {
    const auto quantized =
        std::ranges::find_if(schedule.units[block].flats, &ScheduleFlat::is_quantized);
    ASSERT_NE(quantized, schedule.units[block].flats.end());
    EXPECT_EQ(quantized->numel, padded);
  }
  // Packed: a slot in use and one ahead; decoded: one.
  std::int64_t quantized_slots = 0, decoded_slots = 0;
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    if (!buffer.is_slot()) continue;
    quantized_slots += buffer.role == Role::kParameter && buffer.format == DType::kUInt8 ? 1 : 0;
    decoded_slots += buffer.role == Role::kDecoded ? 1 : 0;
  }
  EXPECT_EQ(quantized_slots, 2);
  EXPECT_EQ(decoded_slots, 1);
  std::int64_t decodes = 0;
  for (const Action& action : schedule.actions) {
    decodes += action.operation == &operations::kDecode ? 1 : 0;
  }
  EXPECT_EQ(decodes, 3 + 2);  // the last block's stay until its backward
}

// The query's, key's and value's scales have a mean each; so have those of gate and up.
TEST(QuantizedBaseAccount, CountsTheScalesThatAreQuantised) {
  GptConfig config = gpt_preset("llama3-8b");
  config.adapter = {.kind = LoraOptions{.rank = 16, .alpha = 16.0}, .target_pattern = "all-linear"};
  config.base_format = WeightFormat::kNf4Double;
  std::int64_t linear = 0, bytes = 0, wanted = 0;
  for (const Unit& unit : make_layout(make_gpt(config), {}, 1).units) {
    const FlatParameter flat = flat_named(unit, "quantized");
    linear += flat.decoded_numel;
    bytes += flat.padded_numel;
    for (const FlatTensor& tensor : flat.tensors) {
      const std::int64_t numel = tensor.spec.shape.numel();
      EXPECT_TRUE(tensor.spec.joined.size() <= kMostJoined);
      const auto means = static_cast<std::int64_t>(tensor.spec.joined.size());
      EXPECT_EQ(tensor.numel(), numel / 2 + numel / 64 + 4 * (numel / 16384 + means));
      wanted += (tensor.numel() + 63) / 64 * 64;
    }
  }
  EXPECT_EQ(bytes, wanted);
  EXPECT_EQ(linear, 6'979'321'856);
  EXPECT_NEAR(static_cast<double>(bytes) * 8 / static_cast<double>(linear), 4.127, 0.001);
}

// What others state for these models: 6.03 and 42.7 GB in nf4 beside 16.06 and 141.1 GB in bf16.
TEST(QuantizedBaseAccount, IsThatOfPublishedModels) {
  struct Case {
    const char* preset;
    std::int64_t linear, rest;
    double billions;
  };
  for (const Case& of : {Case{"llama3-8b", 6'979'321'856, 1'050'939'392, 6.03},
                         Case{"llama3-70b", 68'451'041'280, 2'102'665'216, 42.7}}) {
    SCOPED_TRACE(of.preset);
    GptConfig config = gpt_preset(of.preset);
    config.adapter = {.kind = LoraOptions{.rank = 16, .alpha = 16.0},
                      .target_pattern = "all-linear"};
    config.base_format = WeightFormat::kNf4;
    std::int64_t quantized = 0, decoded = 0, frozen = 0;
    for (const Unit& unit : make_layout(make_gpt(config), {}, 1).units) {
      quantized += flat_named(unit, "quantized").padded_numel;
      decoded += flat_named(unit, "quantized").decoded_numel;
      frozen += flat_named(unit, "frozen").padded_numel;
    }
    EXPECT_EQ(decoded, of.linear);
    EXPECT_EQ(quantized, of.linear / 16 * 9);
    EXPECT_EQ(frozen, of.rest);
    EXPECT_NEAR(static_cast<double>(quantized + 2 * frozen) / 1e9, of.billions, 0.05);
  }
}

TEST(QuantizedBaseAccount, RefusesWhatCannotBe) {
  SmallRun run = small_run({WeightFormat::kNf4, DType::kFloat32});
  run.adapter = {};
  EXPECT_THROW(train(run), Error);
}

// A schedule that decodes what has not been gathered, or lets a slot go too early, is no proof.
TEST(QuantizedBaseAccount, IsValidatedLikeAnyOtherAction) {
  SmallRun run = small_run({WeightFormat::kNf4, DType::kFloat32});
  run.ranks = 2;
  const Model model = [&] {
    GptConfig config = small_gpt();
    config.adapter = run.adapter;
    config.base_format = run.base_format;
    return make_gpt(config);
  }();
  const Schedule good = plan(make_layout(model, run.wrap, 2), plan_options(run));
  require_valid(good);
  const auto decode = std::ranges::find(good.actions, &operations::kDecode, &Action::operation);
  const auto at = decode - good.actions.begin();
  Schedule early = good;
  early.actions[static_cast<std::size_t>(at)].waits.clear();
  EXPECT_FALSE(validate(early).empty());
  Schedule other = good;
  std::swap(other.actions[static_cast<std::size_t>(at)].reads.front().unit,
            other.actions[static_cast<std::size_t>(at)].writes.front().unit);
  other.actions[static_cast<std::size_t>(at)].writes.front().unit = 2;
  EXPECT_FALSE(validate(other).empty());
  Schedule summed = good;
  for (Action& action : summed.actions) {
    if (action.operation == &operations::kDecode) action.writes.front().adds = true;
  }
  EXPECT_FALSE(validate(summed).empty());
}

}  // namespace
}  // namespace tessera::test::quantized_base_test
