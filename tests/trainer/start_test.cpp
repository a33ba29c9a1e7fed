#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/checkpointed_run.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer.h"

// What a run counts before its first step and after its last, and how it is ended before the first.
namespace tessera::start_test {
namespace {

using test::RandomTokens;
using test::TemporaryFolder;

constexpr std::int64_t kSteps = 3;

TrainerOptions options_of(int ranks) {
  return test::options_of({.strategy = "full_shard", .ranks = ranks, .precision = DType::kBFloat16},
                          kSteps);
}

TrainingSummary train(const TrainerOptions& options, const Trainer::OnStep& on_step = {}) {
  const Model model = test::checkpointed_gpt();
  const RandomTokens data = test::checkpointed_data();
  return Trainer(model, data, options).train(on_step);
}

void expect_done(const HostWork& work, HostTask task) {
  const HostWork::Extent extent = work.of(task);
  EXPECT_GT(extent.total_bytes, 0) << to_string(task);
  EXPECT_EQ(extent.done_bytes, extent.total_bytes) << to_string(task);
}

TEST(Start, IsCountedToTheByteAndHashesTheSame) {
  for (const int ranks : {1, 3}) {
    const TemporaryFolder folder;
    TrainerOptions options = options_of(ranks);
    const std::string expected = train(options).parameters_sha256;
    const auto first = options.host_work = std::make_shared<HostWork>();
    options.checkpoints.folder = folder.path("run");
    options.stop_after = 1;
    train(options);
    expect_done(*first, HostTask::kInitialize);
    expect_done(*first, HostTask::kHash);
    EXPECT_EQ(first->of(HostTask::kHash).done_bytes, 4 * parameter_count(test::checkpointed_gpt()));
    const auto second = options.host_work = std::make_shared<HostWork>();
    options.checkpoints.resume = "auto";
    options.stop_after = 0;
    EXPECT_EQ(train(options).parameters_sha256, expected);
    expect_done(*second, HostTask::kInitialize);
    expect_done(*second, HostTask::kLoad);
  }
}

TEST(Start, OfQuantisedWeightsIsCountedToTheByte) {
  const GptConfig config{
      .vocab_size = 50,
      .context_length = 6,
      .layers = 2,
      .heads = 2,
      .width = 64,
      .adapter = {.kind = LoraOptions{.rank = 2}, .target_pattern = "all-linear"},
      .base_format = WeightFormat::kNf4};
  const Model model = make_gpt(config);
  const RandomTokens data = test::checkpointed_data();
  for (const int ranks : {1, 2}) {
    TrainerOptions options = options_of(ranks);
    options.precision = DType::kFloat32;
    options.host_work = std::make_shared<HostWork>();
    const Trainer trainer(model, data, options);
    const TrainingSummary summary = trainer.train();
    expect_done(*options.host_work, HostTask::kInitialize);
    expect_done(*options.host_work, HostTask::kHash);
    EXPECT_EQ(summary.measured_memory.total, summary.predicted_memory.total);
  }
}

TEST(Start, IsEndedWhereverItIs) {
  const TemporaryFolder folder;
  TrainerOptions saved = options_of(2);
  saved.checkpoints.folder = folder.path("run");
  saved.stop_after = 1;
  train(saved);
  for (const HostTask task : {HostTask::kInitialize, HostTask::kLoad}) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(testing::Message() << to_string(task) << " of " << ranks);
      const HostWork* watched = nullptr;
      TrainerOptions options = options_of(ranks);
      options.host_work = std::make_shared<HostWork>(
          [&] { return watched != nullptr && watched->of(task).done_bytes > 0; });
      watched = options.host_work.get();
      options.checkpoints = {.folder = folder.path("run"), .resume = "auto"};
      int steps = 0;
      try {
        train(options, [&](const StepRecord&) { return ++steps < 0; });
        ADD_FAILURE() << "it began";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      }
      EXPECT_EQ(steps, 0);
      EXPECT_TRUE(watched->is_starting());
      const HostWork::Extent extent = watched->of(task);
      EXPECT_LT(extent.done_bytes, extent.total_bytes);
    }
  }
}

TEST(Start, IsOverWithTheFirstStep) {
  TrainerOptions options = options_of(2);
  bool ends = false;
  options.host_work = std::make_shared<HostWork>([&] { return ends; });
  const TrainingSummary summary = train(options, [&](const StepRecord&) {
    ends = true;
    return true;
  });
  EXPECT_EQ(summary.steps, kSteps);
  EXPECT_EQ(summary.parameters_sha256, train(options_of(2)).parameters_sha256);
}

}  // namespace
}  // namespace tessera::start_test
