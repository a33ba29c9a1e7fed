#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpointed_run.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer.h"

// The best checkpoint by evaluation loss, and runs that stop when there is no better one.
namespace tessera::best_checkpoint_test {
namespace {

using test::TemporaryFolder;
using test::Variant;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 12;

/// Evaluates after every second step; at this learning rate losses go up and down.
TrainerOptions options_of(const Variant& variant) {
  TrainerOptions options = test::options_of(variant, kSteps);
  options.learning_rate.peak = 0.5;
  options.evaluate_every = 2;
  options.evaluation_samples = 12;
  return options;
}

struct Outcome {
  std::vector<EvaluationRecord> evaluations;  ///< those that are due
  TrainingSummary summary;
};

Outcome train(const TrainerOptions& options) {
  const Model model = test::checkpointed_gpt();
  const test::RandomTokens data = test::checkpointed_data();
  Outcome run;
  const Trainer trainer(model, data, options, &data);
  run.summary = trainer.train({}, {}, [&](const EvaluationRecord& record) {
    if (record.step % options.evaluate_every == 0) run.evaluations.push_back(record);
  });
  return run;
}

/// Step, loss, best step and count of each.
std::vector<std::string> describe(const std::vector<EvaluationRecord>& evaluations) {
  std::vector<std::string> all;
  for (const EvaluationRecord& record : evaluations) {
    all.push_back(concat(record.step, ": ", record.loss, ", best ", record.best.value().loss,
                         " at ", record.best->step, ", ", record.best->without_improvement));
  }
  return all;
}

std::string name_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

TEST(BestCheckpoint, IsThatOfTheLowestEvaluationLoss) {
  for (const std::int64_t limit : {0, 1, 2}) {
    const TemporaryFolder folder;
    TrainerOptions options = options_of({"full_shard", 3});
    options.checkpoints.folder = folder.path("run");
    options.checkpoints.save_best = true;
    options.checkpoints.total_limit = limit;
    const Outcome run = train(options);
    ASSERT_EQ(run.evaluations.size(), 6U);
    const auto lowest = std::ranges::min_element(run.evaluations, {}, &EvaluationRecord::loss);
    ASSERT_NE(lowest->step, kSteps) << "there is something to tell apart";
    const std::string best = find_best_checkpoint(folder.path("run"));
    EXPECT_EQ(name_of(best), concat("step_", lowest->step));
    EXPECT_EQ(find_checkpoint(folder.path("run/best")), best);
    EXPECT_EQ(find_whole_checkpoint(folder.path("run/best")).path, best);
    EXPECT_EQ(name_of(find_checkpoint(folder.path("run"))), "step_12");
    const Manifest manifest = read_manifest(find_checkpoint(folder.path("run")));
    EXPECT_EQ(manifest.best, run.evaluations.back().best);
    EXPECT_EQ(manifest.best->loss, lowest->loss);
    verify_files(read_manifest(best), best);
    EXPECT_TRUE(limit == 0 || list_checkpoints(folder.path("run")).size() == 2U);
  }
}

TEST(BestCheckpoint, IsKeptAsIfTheRunHadNotBeenInterrupted) {
  const Outcome whole = [&] {
    const TemporaryFolder folder;
    TrainerOptions options = options_of({"full_shard", 3});
    options.checkpoints.folder = folder.path("run");
    options.checkpoints.save_best = true;
    return train(options);
  }();
  for (const std::int64_t stop_after : {3, 4, 5, 8}) {
    SCOPED_TRACE(concat("stopped after ", stop_after));
    const TemporaryFolder folder;
    TrainerOptions options = options_of({"zero2", 2});
    options.checkpoints.folder = folder.path("run");
    options.checkpoints.save_best = true;
    options.checkpoints.resume = "auto";
    options.checkpoints.total_limit = 1;
    options.stop_after = stop_after;
    std::vector<EvaluationRecord> evaluations = train(options).evaluations;
    options = options_of({"full_shard", 4});
    options.checkpoints.folder = folder.path("run");
    options.checkpoints.save_best = true;
    options.checkpoints.resume = "latest";
    for (const EvaluationRecord& record : train(options).evaluations) evaluations.push_back(record);
    EXPECT_EQ(describe(evaluations), describe(whole.evaluations));
    EXPECT_EQ(name_of(find_best_checkpoint(folder.path("run"))),
              concat("step_", whole.evaluations.back().best->step));
  }
}

TEST(BestCheckpoint, CanBeGoneOnFrom) {
  const TemporaryFolder folder;
  TrainerOptions options = options_of({"full_shard", 2});
  options.checkpoints.folder = folder.path("run");
  options.checkpoints.save_best = true;
  const Outcome run = train(options);
  const BestEvaluation best = run.evaluations.back().best.value();
  for (const std::string& resume : {std::string("best"), folder.path("run/best")}) {
    TrainerOptions rest = options;
    rest.checkpoints.resume = resume;
    const Outcome again = train(rest);
    EXPECT_EQ(again.summary.steps, kSteps - best.step);
    EXPECT_EQ(again.summary.parameters_sha256, run.summary.parameters_sha256);
    EXPECT_EQ(again.evaluations.back().best, best);
  }
}

TEST(BestCheckpoint, OfARunThatWasGivenUpIsForgotten) {
  const TemporaryFolder folder;
  TrainerOptions options = options_of({"full_shard", 2});
  options.checkpoints.folder = folder.path("run");
  options.checkpoints.save_best = true;
  options.checkpoints.every = 2;
  const Outcome run = train(options);
  const std::int64_t best = run.evaluations.back().best->step;
  ASSERT_GT(best, 2);
  options.checkpoints.resume = folder.path("run/step_2");
  options.stop_after = 1;
  train(options);
  EXPECT_EQ(name_of(find_best_checkpoint(folder.path("run"))), "step_2");
}

TEST(Patience, StopsAfterSoManyEvaluationsThatAreNoBetter) {
  TrainerOptions options = options_of({"full_shard", 2});
  options.patience = 3;
  options.min_improvement = 1e9;  // no loss is lower by so much
  const Outcome run = train(options);
  EXPECT_TRUE(run.summary.stopped_early);
  EXPECT_EQ(run.summary.last_step, 8);  // the first evaluation, and three that are no better
  EXPECT_EQ(run.evaluations.back().best->without_improvement, 3);
  options.min_improvement = 0.0;
  options.patience = 100;
  EXPECT_FALSE(train(options).summary.stopped_early);
}

TEST(Patience, CountsOnAfterAnInterruption) {
  for (const std::int64_t stop_after : {2, 3, 5, 6, 7}) {
    SCOPED_TRACE(concat("stopped after ", stop_after));
    const TemporaryFolder folder;
    TrainerOptions options = options_of({"full_shard", 2});
    options.patience = 3;
    options.min_improvement = 1e9;
    options.checkpoints.folder = folder.path("run");
    options.checkpoints.resume = "auto";
    options.stop_after = stop_after;
    EXPECT_FALSE(train(options).summary.stopped_early);
    options.stop_after = 0;
    const Outcome rest = train(options);
    EXPECT_TRUE(rest.summary.stopped_early);
    EXPECT_EQ(rest.summary.last_step, 8);
    // It has stopped; with more patience it goes on.
    try {
      train(options);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      EXPECT_THAT(error.what(), HasSubstr("raise `patience`"));
    }
    options.patience = 4;
    EXPECT_EQ(train(options).summary.last_step, 10);
  }
}

TEST(BestCheckpoint, SaysWhatIsMissing) {
  const Model model = test::checkpointed_gpt();
  const test::RandomTokens data = test::checkpointed_data();
  const TemporaryFolder folder;
  const auto error_of = [&](auto change, bool evaluates = true) -> std::string {
    TrainerOptions options = options_of({"full_shard", 1});
    change(options);
    try {
      const Trainer trainer(model, data, options, evaluates ? &data : nullptr);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "";
  };
  const auto saves_best = [&](TrainerOptions& o) {
    o.checkpoints.save_best = true;
    o.checkpoints.folder = folder.path("run");
  };
  EXPECT_EQ(error_of(saves_best), "");
  EXPECT_THAT(error_of(saves_best, false), HasSubstr("`eval_data`"));
  EXPECT_THAT(error_of([&](TrainerOptions& o) {
                saves_best(o);
                o.evaluate_every = 0;
              }),
              HasSubstr("`evaluate_every` N"));
  EXPECT_THAT(error_of([](TrainerOptions& o) { o.checkpoints.save_best = true; }),
              HasSubstr("`checkpoints.folder` FOLDER"));
  EXPECT_THAT(error_of([](TrainerOptions& o) { o.patience = 1; }, false), HasSubstr("`patience`"));
  EXPECT_THAT(error_of([](TrainerOptions& o) { o.min_improvement = 0.1; }),
              HasSubstr("`patience` N"));
}

}  // namespace
}  // namespace tessera::best_checkpoint_test
