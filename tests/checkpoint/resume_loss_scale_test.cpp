#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpointed_run.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/trainer/trainer.h"

// A run with loss scaling goes on with the scale, the window and the count of skipped steps that it
// had.
namespace tessera::resume_loss_scale_test {
namespace {

using test::TemporaryFolder;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 12;

/// Parameters so large that gradients overflow with the largest scales.
void set_large(TrainingState& state, Stream& stream) {
  static const std::vector<float> values = [] {
    std::vector<float> all(1024);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = 3.0F * std::sin(static_cast<float>(i));
    return all;
  }();
  const Model model = test::checkpointed_gpt();
  std::map<std::string, std::int64_t> numel;
  for (const auto& layer : model.layers) {
    for (const auto& parameter : layer->parameters()) {
      numel[parameter.name] = parameter.shape.numel();
    }
  }
  state.set_parameters(
      [&](const std::string& name) {
        return std::span(values).first(static_cast<std::size_t>(numel.at(name)));
      },
      stream);
}

/// Grows every second step, from where gradients nearly overflow.
TrainerOptions options_of(const test::Variant& variant) {
  TrainerOptions options = test::options_of(variant, kSteps);
  options.initial_parameters = set_large;
  options.loss_scale.choice = parse_loss_scale("dynamic");
  options.loss_scale.initial = 0x1p126;
  options.loss_scale.window = 2;
  return options;
}

struct Trained {
  std::vector<double> losses, scales, rates;
  std::vector<bool> skipped;
  std::vector<std::int64_t> skipped_steps;
  std::string sha256;
  std::vector<std::string> notes;
};

Trained train(const TrainerOptions& options, std::int64_t from = 0) {
  const Model model = test::checkpointed_gpt();
  const test::RandomTokens data = test::checkpointed_data();
  Trained run;
  const auto on_step = [&](const StepRecord& record) {
    if (record.step <= from) return true;
    run.losses.push_back(record.loss);
    run.scales.push_back(record.loss_scale.value_or(0.0));
    run.rates.push_back(record.learning_rate);
    run.skipped.push_back(record.skipped);
    run.skipped_steps.push_back(record.skipped_steps);
    return true;
  };
  const auto on_note = [&](const std::string& note) { run.notes.push_back(note); };
  run.sha256 = Trainer(model, data, options).train(on_step, on_note).parameters_sha256;
  return run;
}

void expect_same(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.scales, b.scales);
  EXPECT_EQ(a.rates, b.rates);
  EXPECT_EQ(a.skipped, b.skipped);
  EXPECT_EQ(a.skipped_steps, b.skipped_steps);
  EXPECT_EQ(a.sha256, b.sha256);
}

TEST(ResumeLossScale, GivesTheBitsOfTheWholeRunFromAnyStep) {
  const TrainerOptions whole_run = options_of({.ranks = 2});
  const Trained all = train(whole_run);
  EXPECT_THAT(all.skipped, Contains(true));
  EXPECT_THAT(all.skipped, Contains(false));
  EXPECT_EQ(all.skipped_steps.back(), std::ranges::count(all.skipped, true));
  for (const std::int64_t saved_at : {1, 4, 5, 8}) {
    SCOPED_TRACE(saved_at);
    const TemporaryFolder folder;
    TrainerOptions options = whole_run;
    options.checkpoints.folder = folder.path("run");
    options.stop_after = saved_at;
    train(options);
    TrainerOptions rest = options_of({.strategy = "zero2", .ranks = 3});
    rest.checkpoints.resume = folder.path("run");
    expect_same(train(rest, saved_at), train(whole_run, saved_at));
  }
}

TEST(ResumeLossScale, OverlappedStepsAndSavesBesideThemKeepTheBits) {
  const TemporaryFolder folder;
  const Trained all = train(options_of({.ranks = 2}));
  TrainerOptions options = options_of({.ranks = 2});
  options.overlap_steps = true;
  options.checkpoints.folder = folder.path("run");
  options.checkpoints.every = 3;
  expect_same(train(options), all);
  TrainerOptions rest = options_of({.ranks = 2});
  rest.checkpoints.resume = folder.path("run/step_6");
  const Trained resumed = train(rest, 6);
  EXPECT_EQ(resumed.sha256, all.sha256);
}

TEST(ResumeLossScale, SaysWhatItDoesNotFindAndWhatItLeavesBehind) {
  const TemporaryFolder folder;
  TrainerOptions plain = test::options_of({.ranks = 2}, kSteps);
  plain.initial_parameters = set_large;
  plain.checkpoints.folder = folder.path("plain");
  plain.stop_after = 2;
  train(plain);
  EXPECT_FALSE(read_manifest(find_checkpoint(folder.path("plain"))).loss_scaler);
  TrainerOptions scaled = options_of({.ranks = 2});
  scaled.loss_scale.initial = 0x1.8p127;
  scaled.checkpoints.resume = folder.path("plain");
  scaled.checkpoints.folder = folder.path("scaled");
  scaled.stop_after = 4;
  const Trained run = train(scaled);
  EXPECT_THAT(run.notes, Contains(HasSubstr("the checkpoint has no loss scaler: it begins at")));
  EXPECT_EQ(run.scales.front(), 0x1.8p127);
  const std::int64_t skipped = run.skipped_steps.back();
  ASSERT_GT(skipped, 0);
  const auto saved = read_manifest(find_checkpoint(folder.path("scaled"))).loss_scaler;
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->skipped, skipped);
  // Without loss scaling, the learning rate goes on from the steps that were taken.
  TrainerOptions rest = test::options_of({.ranks = 2}, kSteps);
  rest.checkpoints.resume = folder.path("scaled");
  const Trained last = train(rest);
  EXPECT_THAT(last.notes, Contains(HasSubstr("is left behind: `loss_scale.choice` is none")));
  EXPECT_EQ(last.rates.front(), resolved(rest).learning_rate.at(6 - skipped));
}

}  // namespace
}  // namespace tessera::resume_loss_scale_test
