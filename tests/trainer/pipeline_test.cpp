#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
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
  EXPECT_THAT(message(options), HasSubstr("tied_apart is false, and pipeline is 2"));
}

}  // namespace
}  // namespace tessera::test
