#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpointed_run.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/core/error.h"
#include "tessera/trainer/same_bits.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer.h"

// Runs of several stages: the same bits, checkpoints that go on at any number of stages.
namespace tessera::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 4, kSavedAt = 2;

TrainerOptions staged(int stages, int ranks_of_stage = 1, const std::string& strategy = "zero1") {
  TrainerOptions options = options_of({.strategy = strategy, .ranks = ranks_of_stage}, kSteps);
  options.ranks = stages * ranks_of_stage;
  options.pipeline.ranks = stages;
  options.pipeline.tied_apart = true;
  return options;
}

TEST(TrainPipeline, GivesTheBitsOfOneProcess) {
  const Numbers one = train_numbers(staged(1));
  for (const int stages : {2, 3, 4}) {
    EXPECT_EQ(train_numbers(staged(stages)), one) << stages << " stages";
  }
  EXPECT_EQ(train_numbers(staged(2, 2)), train_numbers(staged(1, 2)));
  TrainerOptions gpipe = staged(3);
  gpipe.pipeline.schedule.order = PipelineOrder::kGPipe;
  gpipe.policy.recompute = Recompute::kFull;
  gpipe.pipeline.layers = parse_stage_layers("1,1,2");
  EXPECT_EQ(train_numbers(gpipe), one);
}

/// Two pipeline ranks with two stages each.
TrainerOptions twice_staged(std::string_view schedule) {
  TrainerOptions options = staged(2);
  options.pipeline.schedule = parse_pipeline_schedule(schedule);
  options.pipeline.virtual_stages = 2;
  return options;
}

TEST(TrainPipeline, SeveralStagesOnARankGiveTheBitsOfOneProcess) {
  TrainerOptions alone = staged(1);
  alone.accumulate = 3;
  const Numbers one = train_numbers(alone);
  for (const char* const schedule : {"", "interleaved", "gpipe", "zb-h1", "zb-v"}) {
    TrainerOptions options = twice_staged(schedule);
    options.accumulate = 3;
    EXPECT_EQ(train_numbers(options), one) << schedule;
  }
  TrainerOptions split = staged(3);
  split.accumulate = 3;
  split.pipeline.schedule.order = PipelineOrder::kZeroBubble;
  EXPECT_EQ(train_numbers(split), one);
}

TEST(TrainPipeline, AFileListsThePassesOfAllRanks) {
  TrainerOptions options = staged(1);
  options.accumulate = 2;
  const Numbers one = train_numbers(options);
  const TemporaryFolder folder;
  const std::string path = folder.path("passes.csv");
  std::ofstream(path)
      << "0F0,0F1,,,2F0,2F1,,2B0,2B1,,0B0,0B1\n,1F0,1F1,,,3F0,3B0,3F1,3B1,1B0,1B1\n";
  options.ranks = options.pipeline.ranks = 2;
  options.pipeline.schedule = parse_pipeline_schedule(path);
  EXPECT_EQ(options.pipeline.stages(), 4);
  EXPECT_EQ(to_string(options.pipeline.schedule), path);
  EXPECT_EQ(train_numbers(options), one);
}

TEST(TrainPipeline, CheckpointsOfSeveralStagesOnARankGoOn) {
  const Numbers whole = train_numbers(staged(1), kSavedAt);
  const TemporaryFolder folder;
  TrainerOptions first = twice_staged("zb-v");
  first.checkpoints.folder = folder.path("4");
  first.stop_after = kSavedAt;
  train_numbers(first);
  for (TrainerOptions next : {staged(1), staged(3), twice_staged("interleaved")}) {
    next.checkpoints.resume = folder.path("4");
    EXPECT_EQ(train_numbers(next), whole) << next.pipeline.ranks << " ranks";
  }
}

TEST(TrainPipeline, CheckpointsGoOnAtAnyNumberOfStages) {
  const Numbers whole = train_numbers(staged(1), kSavedAt);
  const TemporaryFolder folder;
  std::string from = folder.path("4");
  TrainerOptions first = staged(4);
  first.checkpoints.folder = from;
  first.stop_after = kSavedAt;
  train_numbers(first);
  for (const int stages : {2, 1, 3}) {
    TrainerOptions next = staged(stages);
    next.checkpoints.resume = from;
    EXPECT_EQ(train_numbers(next), whole) << "from 4 stages to " << stages;
  }
}

TEST(TrainPipeline, EvaluatesAndAnswersThroughTheStages) {
  constexpr std::int64_t kSamples = 7;  // fills no batch of two data ranks
  const Model model = checkpointed_gpt();
  const RandomTokens data = checkpointed_data();
  std::vector<std::int32_t> tokens(kSamples * 6), targets(kSamples * 6);
  const TensorView inputs{tokens.data(), DType::kInt32, Shape{kSamples, 6}};
  data.fill(0, kSamples, inputs, {targets.data(), DType::kInt32, Shape{kSamples, 6}});
  const auto answers = [&](TrainerOptions options) {
    options.evaluation_samples = kSamples;
    options.forward = true;
    Session session(model, data, options, &data);
    session.step();
    const double loss = session.evaluate().loss;
    const Session::Outputs outputs = session.forward(inputs);
    EXPECT_EQ(outputs.shape, (Shape{kSamples, 6, 50}));
    return std::pair{loss, outputs.values};
  };
  EXPECT_EQ(answers(staged(3)), answers(staged(1)));
  EXPECT_EQ(answers(staged(2, 2)), answers(staged(1, 2)));
  EXPECT_EQ(answers(twice_staged("zb-v")), answers(staged(1)));
  EXPECT_EQ(answers(twice_staged("interleaved")), answers(staged(1)));
}

TEST(TrainPipeline, MemoryAndTrafficOfEveryStageAreThosePredicted) {
  const Model model = checkpointed_gpt();
  const RandomTokens data = checkpointed_data();
  TrainerOptions options = staged(3, 2);
  options.steps = 2;
  Session session(model, data, options);
  while (session.step()) {
  }
  const std::vector<RankUse> use = session.use();
  for (std::size_t rank = 0; rank < use.size(); ++rank) {
    const RankCosts& costs = session.plan().stages[rank / 2];
    EXPECT_EQ(use[rank].memory, costs.memory) << "rank " << rank;
  }
}

TEST(TrainPipeline, RefusesWhatCannotBe) {
  const auto message = [](const TrainerOptions& options) -> std::string {
    try {
      train_numbers(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  TrainerOptions options = staged(2);
  options.ranks = 3;
  EXPECT_THAT(message(options), HasSubstr("choose a `pipeline.ranks` that divides the ranks"));
  EXPECT_THAT(message(staged(5)), HasSubstr("has 4 layers, the embedding and the head among them"));
  options = staged(2);
  options.pipeline.layers = parse_stage_layers("1,2");
  EXPECT_THAT(message(options), HasSubstr("3 layers, but the model has 4"));
  options = staged(2);
  options.pipeline.tied_apart = false;
  EXPECT_THAT(message(options), HasSubstr("tied_apart is false, and there are 2 stages"));
  options = twice_staged("1f1b");
  EXPECT_THAT(message(options), HasSubstr("runs 1 stage on each pipeline rank"));
  EXPECT_THAT(message(options), HasSubstr("interleaved runs more"));
  options = twice_staged("zb-v");
  options.pipeline.virtual_stages = 3;
  EXPECT_THAT(message(options), HasSubstr("runs 2 stages on each pipeline rank"));
  const TemporaryFolder folder;
  const std::string path = folder.path("passes.csv");
  EXPECT_THROW(parse_pipeline_schedule(path), Error);
  std::ofstream(path) << "0F0,0B0\n1F0,1B0\n";
  options = staged(2);
  options.pipeline.schedule = parse_pipeline_schedule(path);
  options.accumulate = 2;
  EXPECT_THAT(message(options), HasSubstr("stage 0 has forwards of 1 of 2 micro-steps"));
  options = staged(4);
  options.pipeline.schedule = parse_pipeline_schedule(path);
  EXPECT_THAT(message(options), HasSubstr("write `pipeline.ranks` 2"));
}

}  // namespace
}  // namespace tessera::test
