#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <tuple>

#include "cuda/cuda_run.h"
#include "support/extent.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

// Runs in fp8 on CPU ranks: every strategy gives the same bits, and takes the memory that was
// planned.
namespace tessera::fp8_run_test {
namespace {

using test::counting_gpt;
using test::CountingTokens;
using test::expect_same_bits;
using test::run;
using test::TemporaryFolder;
using test::Trained;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TrainerOptions fp8_options(const std::string& strategy = "no_shard", int ranks = 1) {
  TrainerOptions options = test::cuda_options(strategy, ranks);
  options.device = DeviceChoice::kCpu;
  options.group = GroupChoice::kAuto;
  options.steps = 2;
  options.precision = DType::kBFloat16;
  options.fp8.enabled = true;
  return options;
}

void expect_as_planned(const Trained& trained) {
  EXPECT_EQ(trained.summary.measured_memory, trained.summary.predicted_memory);
  for (const Traffic& counted : trained.summary.counted_traffic) {
    EXPECT_EQ(counted, trained.summary.predicted_traffic);
  }
}

TEST(Fp8Run, LearnsAndIsNotBf16) {
  const Model model = counting_gpt();
  TrainerOptions options = fp8_options();
  options.steps = 20;
  const Trained in_fp8 = run(model, options);
  options.fp8 = {};
  const Trained in_bf16 = run(model, options);
  EXPECT_NE(in_fp8.parameters, in_bf16.parameters);
  EXPECT_LT(in_fp8.losses.back(), in_fp8.losses.front());
  EXPECT_NEAR(in_fp8.losses.back(), in_bf16.losses.back(), 0.05 * in_bf16.losses.back());
}

TEST(Fp8Run, AllStrategiesGiveTheBitsOfOneRankThatAccumulates) {
  const Model model = counting_gpt(0.1F);
  for (const int ranks : {1, 2, 3, 4}) {
    TrainerOptions alone = fp8_options();
    alone.accumulate = ranks;
    const Trained expected = run(model, alone);
    int number = ranks;
    for (const Strategy& strategy : strategies()) {
      if (!test::runs_ci_tests() && number++ % 4 != 0) continue;
      if (strategy.hybrid && ranks < 4) continue;
      SCOPED_TRACE(concat(strategy.name, " on ", ranks));
      TrainerOptions options = fp8_options(strategy.name, ranks);
      options.policy.prefetch_forward = options.policy.prefetch_backward = number % 3;
      const Trained trained = run(model, options);
      expect_same_bits(trained, expected);
      expect_as_planned(trained);
    }
  }
}

TEST(Fp8Run, RecomputationOffloadingAndStagesChangeNoBit) {
  const Model model = counting_gpt(0.1F);
  TrainerOptions options = fp8_options("full_shard", 2);
  options.accumulate = 2;
  const Trained expected = run(model, options);
  expect_as_planned(expected);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    TrainerOptions own = options;
    own.policy.recompute = recompute;
    const Trained trained = run(model, own);
    expect_same_bits(trained, expected);
    expect_as_planned(trained);
  }
  TrainerOptions offloaded = options;
  offloaded.offload_parameters = {.host = 1.0};
  offloaded.policy.recompute = Recompute::kFull;
  offloaded.offload_activations = ActivationOffload::kHost;
  expect_same_bits(run(model, offloaded), expected);
  TrainerOptions tied = options;
  tied.pipeline.tied_apart = true;
  const Trained apart = run(model, tied);
  for (const PipelineOrder order :
       {PipelineOrder::kOneForwardOneBackward, PipelineOrder::kZeroBubble}) {
    TrainerOptions stages = options;
    stages.ranks = 4;
    stages.pipeline.ranks = 2;
    stages.pipeline.schedule.order = order;
    const Trained trained = run(model, stages);
    expect_same_bits(trained, apart);
    expect_as_planned(trained);
  }
}

TEST(Fp8Run, EverySettingChangesBitsAndNoneBetweenStrategies) {
  const Model model = counting_gpt();
  std::vector<std::string> hashes;
  const auto try_one = [&](const Fp8Options& fp8) {
    TrainerOptions alone = fp8_options();
    alone.fp8 = fp8;
    alone.fp8.enabled = true;
    alone.accumulate = 2;
    const Trained expected = run(model, alone);
    TrainerOptions sharded = fp8_options("full_shard", 2);
    sharded.fp8 = alone.fp8;
    const Trained trained = run(model, sharded);
    expect_same_bits(trained, expected);
    expect_as_planned(trained);
    EXPECT_THAT(hashes, Not(Contains(expected.parameters)));
    hashes.push_back(expected.parameters);
  };
  try_one({});
  try_one({.formats = Fp8Formats::kE4M3});
  try_one({.scales = Fp8Scales::kExact});
  try_one({.products = {.forward = true, .input_gradient = false, .weight_gradient = false}});
  try_one({.products = {.forward = true, .input_gradient = true, .weight_gradient = false}});
  try_one({.products = {.forward = false, .input_gradient = false, .weight_gradient = true}});
  try_one({.bf16_blocks = {.first = 1, .last = 0}});
  try_one({.bf16_blocks = {.first = 0, .last = 1}});
}

TEST(Fp8Run, KeepsLessThanBf16) {
  const Model model =
      make_gpt({.vocab_size = 19, .context_length = 8, .layers = 6, .heads = 2, .width = 64});
  const CountingTokens data;
  TrainerOptions options = fp8_options();
  options.micro_batch = 16;
  const auto activations = [&] {
    return make_training_plan({model, data}, options)
        .memory.by_category[MemoryCategory::kActivations];
  };
  const std::int64_t in_fp8 = activations();
  options.fp8 = {};
  EXPECT_LT(in_fp8, activations());
}

TEST(Fp8Run, TrainsAdaptersOverABaseInFp8) {
  GptConfig config{.vocab_size = 19, .context_length = 8, .layers = 2, .heads = 2, .width = 16};
  config.adapter = {.kind = LoraOptions{.rank = 2}, .targets = {"c_attn", "c_fc"}};
  const Model model = make_gpt(config);
  TrainerOptions alone = fp8_options();
  alone.accumulate = 2;
  const Trained expected = run(model, alone);
  const Trained sharded = run(model, fp8_options("full_shard", 2));
  expect_same_bits(sharded, expected);
  expect_as_planned(sharded);
  alone.fp8 = {};
  EXPECT_NE(run(model, alone).losses, expected.losses);
}

TEST(Fp8Run, ResumesAtAnotherWorldSizeWithTheSameBits) {
  const Model model = counting_gpt();
  TrainerOptions options = fp8_options("full_shard", 2);
  options.steps = 6;
  const Trained whole = run(model, options);
  const TemporaryFolder folder;
  TrainerOptions first = options;
  first.checkpoints.folder = folder.path();
  first.checkpoints.every = 3;
  first.stop_after = 3;
  run(model, first);
  TrainerOptions second = fp8_options("zero2", 1);
  second.steps = 6;
  second.accumulate = 2;
  second.checkpoints.folder = folder.path();
  second.checkpoints.resume = "latest";
  const CountingTokens data;
  std::vector<std::string> notes;
  const TrainingSummary resumed =
      Trainer(model, data, second).train({}, [&](const std::string& note) {
        notes.push_back(note);
      });
  EXPECT_EQ(resumed.parameters_sha256, whole.parameters);
  EXPECT_THAT(notes, Contains(HasSubstr("bits depend on `micro_batch`")));
}

TrainerOptions delayed_options(const std::string& strategy = "no_shard", int ranks = 1) {
  TrainerOptions options = fp8_options(strategy, ranks);
  options.fp8.recipe = Fp8Recipe::kDelayed;
  options.fp8.history = 4;
  return options;
}

TEST(Fp8Run, DelayedScalingGivesTheSameBitsForEveryStrategyAndLearns) {
  const Model model = counting_gpt(0.1F);
  TrainerOptions alone = delayed_options();
  alone.steps = 6;
  alone.accumulate = 2;
  const Trained expected = run(model, alone);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (const char* const strategy : {"full_shard", "zero2"}) {
    TrainerOptions options = delayed_options(strategy, 2);
    options.steps = 6;
    options.policy.recompute = Recompute::kFull;
    const Trained trained = run(model, options);
    expect_same_bits(trained, expected);
    expect_as_planned(trained);
  }
}

TEST(Fp8Run, DelayedScalingResumesWithItsHistories) {
  const Model model = counting_gpt();
  TrainerOptions options = delayed_options("full_shard", 2);
  options.steps = 6;
  const Trained whole = run(model, options);
  const TemporaryFolder folder;
  TrainerOptions first = options;
  first.checkpoints.folder = folder.path();
  first.checkpoints.every = 3;
  first.stop_after = 3;
  run(model, first);
  const auto resumed = [&](TrainerOptions second, std::vector<std::string>& notes) {
    second.steps = 6;
    second.checkpoints.resume = folder.path();
    const CountingTokens data;
    return Trainer(model, data, second)
        .train({}, [&](const std::string& note) { notes.push_back(note); })
        .parameters_sha256;
  };
  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(ranks);
    TrainerOptions second = delayed_options(ranks == 1 ? "zero2" : "full_shard", ranks);
    if (ranks == 1) second.accumulate = 2;
    if (ranks == 4) second.pipeline.ranks = 2;
    if (ranks == 4) second.pipeline.tied_apart = true;
    std::vector<std::string> notes;
    const std::string hash = resumed(second, notes);
    if (ranks == 1) {
      EXPECT_EQ(hash, whole.parameters);
    }
    EXPECT_THAT(notes, Contains(HasSubstr("largest magnitude in the last 4 steps")));
    EXPECT_THAT(notes, Not(Contains(HasSubstr("histories of delayed scaling"))));
  }
  std::vector<std::string> notes;
  TrainerOptions current = fp8_options();
  current.accumulate = 2;
  EXPECT_NE(resumed(current, notes), whole.parameters);
  EXPECT_THAT(notes, Contains(HasSubstr("histories of delayed scaling are left behind")));
}

TEST(Fp8Run, ACheckpointOfStagesHasAllHistories) {
  const Model model = counting_gpt();
  TrainerOptions options = delayed_options("full_shard", 2);
  options.steps = 6;
  options.accumulate = 2;
  options.pipeline.tied_apart = true;
  const Trained whole = run(model, options);
  const TemporaryFolder folder;
  TrainerOptions stages = options;
  stages.ranks = 4;
  stages.pipeline.ranks = 2;
  stages.checkpoints.folder = folder.path();
  stages.checkpoints.every = 3;
  stages.stop_after = 3;
  run(model, stages);
  options.checkpoints.resume = folder.path();
  EXPECT_EQ(run(model, options).parameters, whole.parameters);
}

std::string refusal_of(const TrainerOptions& options) {
  const Model model = counting_gpt();
  const CountingTokens data;
  try {
    make_training_plan({model, data}, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "accepted";
}

TEST(Fp8Run, RefusesWhatWouldDoNothing) {
  TrainerOptions options = fp8_options();
  options.fp8.bf16_blocks = {.first = 1, .last = 1};
  EXPECT_THAT(refusal_of(options), AllOf(HasSubstr("all 2 blocks"), HasSubstr("`precision` bf16")));
  options = fp8_options();
  options.fp8.enabled = false;
  EXPECT_EQ(refusal_of(options), "accepted");
  options.fp8.scales = Fp8Scales::kExact;
  EXPECT_THAT(refusal_of(options), AllOf(HasSubstr("fp8_scales is exact, but precision is bf16"),
                                         HasSubstr("`precision` fp8")));
}

TEST(Fp8Run, RefusesHistoriesThatNobodyKeeps) {
  TrainerOptions options = fp8_options();
  options.fp8.margin = 2;
  EXPECT_THAT(refusal_of(options), AllOf(HasSubstr("fp8_margin is 2, but fp8_recipe is current"),
                                         HasSubstr("`fp8_recipe` delayed")));
  options.fp8.recipe = Fp8Recipe::kDelayed;
  EXPECT_EQ(refusal_of(options), "accepted");
}

// A setting that has its usual value is one that somebody has typed.
TEST(Fp8Run, RefusesTypedSettingsThatChangeNothing) {
  const auto refusal = [](const std::vector<std::pair<const char*, const char*>>& typed) {
    Settings settings(trainer_settings());
    for (const auto& [name, value] : typed) settings.set_text(name, value);
    try {
      trainer_options(settings);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal({{"gather_format", "e4m3"}}),
              HasSubstr("gather_format is e4m3, but precision is fp32"));
  EXPECT_THAT(refusal({{"precision", "bf16"}, {"fp8_scale_units", "8"}}),
              HasSubstr("fp8_scale_units is 8, but precision is bf16"));
  EXPECT_THAT(refusal({{"precision", "fp8"}, {"fp8_history", "1024"}}),
              HasSubstr("fp8_history is 1024, but fp8_recipe is current"));
  EXPECT_EQ(refusal({{"precision", "fp8"}, {"gather_format", "e4m3"}}), "accepted");
  EXPECT_EQ(refusal({{"precision", "fp8"}, {"fp8_recipe", "delayed"}, {"fp8_history", "1024"}}),
            "accepted");
}

TEST(Fp8Run, ParametersTravelAsCodesWithTheSameBitsAndHalfTheBytes) {
  const Model model = counting_gpt(0.1F);
  TrainerOptions options = fp8_options("full_shard", 2);
  options.accumulate = 2;
  const Trained in_codes = run(model, options);
  expect_as_planned(in_codes);
  options.fp8.gather_format = GatherFormat::kBf16;
  const Trained in_bf16 = run(model, options);
  expect_same_bits(in_codes, in_bf16);
  const auto sent = [](const Trained& trained) {
    return trained.summary.counted_traffic.front().sent_of(CollectiveKind::kAllGather);
  };
  EXPECT_LT(static_cast<double>(sent(in_codes)), 0.75 * static_cast<double>(sent(in_bf16)));
}

TEST(Fp8Run, SaysHowMatricesTravel) {
  const Model model = counting_gpt();
  const CountingTokens data;
  const auto notes = [&](const TrainerOptions& options) {
    return make_training_plan({model, data}, options).notes;
  };
  TrainerOptions options = fp8_options("full_shard", 2);
  EXPECT_THAT(notes(options), Contains(HasSubstr("of 2 units are gathered as codes")));
  options.offload_parameters = {.host = 0.5};
  EXPECT_THAT(notes(options), Contains(AllOf(HasSubstr("of 1 units are gathered as codes"),
                                             HasSubstr("of 1 units, whose parameters come from"))));
  options.offload_parameters = {.host = 1.0};
  EXPECT_THAT(notes(options), Contains(HasSubstr("are gathered in bf16, not as `gather_format`")));
  EXPECT_THAT(notes(delayed_options("full_shard", 2)),
              Contains(HasSubstr("as codes, by the scales of earlier steps")));
  options = fp8_options("full_shard", 2);
  options.fp8.products.input_gradient = false;
  EXPECT_THAT(notes(options), Contains(HasSubstr("layers read them in bf16 as well")));
  options.fp8.gather_format = GatherFormat::kBf16;
  EXPECT_THAT(notes(options), Not(Contains(HasSubstr("gathered"))));
  EXPECT_THAT(notes(fp8_options("zero2", 2)), Not(Contains(HasSubstr("gathered"))));
  options.fp8.enabled = false;
  EXPECT_THAT(refusal_of(options), HasSubstr("products in fp8"));
  options.fp8 = {.gather_format = GatherFormat::kBf16};
  EXPECT_THAT(refusal_of(options),
              AllOf(HasSubstr("gather_format is bf16"), HasSubstr("`precision` fp8")));
}

TEST(Fp8Run, SaysWhereItGainsNothing) {
  const Model model = counting_gpt();
  const CountingTokens data;
  const TrainingPlan plan = make_training_plan({model, data}, fp8_options());
  EXPECT_THAT(plan.notes, Contains(HasSubstr("of 2 of 2 blocks")));
  EXPECT_THAT(plan.notes, Contains(HasSubstr("as narrow as 16")));
  EXPECT_THAT(plan.notes, Contains(HasSubstr("has 8 rows")));
}

TEST(Fp8Run, IsASettingOfPrecision) {
  Settings settings(trainer_settings());
  settings.set_text("precision", "fp8");
  settings.set_text("fp8_format", "e4m3");
  settings.set_text("fp8_products", "weight-gradient,forward");
  settings.set_text("fp8_bf16_blocks", "1,2");
  const TrainerOptions options = trainer_options(settings);
  EXPECT_EQ(options.precision, DType::kBFloat16);
  EXPECT_EQ(options.fp8, (Fp8Options{.enabled = true,
                                     .formats = Fp8Formats::kE4M3,
                                     .products = {.forward = true, .input_gradient = false},
                                     .bf16_blocks = {.first = 1, .last = 2}}));
  set_effective(settings, options);
  EXPECT_EQ(settings.get<std::string>("precision"), "fp8");
  EXPECT_EQ(settings.get<std::string>("fp8_scales"), "power-of-two");
  EXPECT_EQ(settings.get<std::string>("fp8_products"), "weight-gradient,forward");
  for (const auto& [name, value] :
       {std::pair{"fp8_products", "backward"}, std::pair{"fp8_products", ""},
        std::pair{"fp8_bf16_blocks", "1"}, std::pair{"fp8_bf16_blocks", "1,-1"},
        std::pair{"fp8_format", "e5m2"}, std::pair{"fp8_recipe", "blockwise"},
        std::pair{"fp8_history", "0"}, std::pair{"fp8_history_rule", "mean"},
        std::pair{"fp8_margin", "-1"}}) {
    EXPECT_THROW(settings.set_text(name, value), Error) << name << " " << value;
  }
}

}  // namespace
}  // namespace tessera::fp8_run_test
