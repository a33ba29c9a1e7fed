#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "support/plain_loop.h"
#include "support/tiny_model.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/core/offload_path.h"
#include "tessera/trainer/trainer.h"

// Lion through Trainer: with every strategy, offloaded, from a checkpoint, and against the paper's
// update in double precision.
namespace tessera::lion_test {
namespace {

using test::tiny_model;
using test::TinyData;

/// Steps of 16 samples on 1, 2 or 4 ranks.
TrainerOptions lion_options(const std::string& strategy, int ranks) {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = ranks;
  options.steps = 5;
  options.micro_batch = 4;
  options.accumulate = 4 / ranks;
  options.optimizer.name = "lion";
  options.optimizer.weight_decay = 0.05F;
  options.optimizer.clip_norm = 0.0;
  options.learning_rate = {.kind = LearningRateSchedule::Kind::kConstant, .peak = 0.01};
  options.threads_per_rank = 1;
  options.timeout = std::chrono::seconds(60);
  options.gather_parameters = true;
  return options;
}

struct Trained {
  TrainingSummary summary;
  std::vector<double> losses;
};

Trained trained_by(const TrainerOptions& options) {
  const Model model = tiny_model();
  const TinyData data;
  Trained result;
  result.summary = Trainer(model, data, options).train([&](const StepRecord& record) {
    result.losses.push_back(record.loss);
    return true;
  });
  return result;
}

void expect_same(const Trained& run, const Trained& expected) {
  EXPECT_EQ(run.losses, expected.losses);
  EXPECT_EQ(run.summary.parameters_sha256, expected.summary.parameters_sha256);
  EXPECT_EQ(run.summary.measured_memory, run.summary.predicted_memory);
  EXPECT_EQ(run.summary.measured_host_memory, run.summary.predicted_host_memory);
}

TEST(Lion, EveryStrategyGivesTheSameBitsInTheMemoryThatIsPredicted) {
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions options = lion_options("full_shard", 1);
    options.precision = precision;
    const Trained expected = trained_by(options);
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    for (const Strategy& strategy : strategies()) {
      SCOPED_TRACE(strategy.name);
      TrainerOptions other = lion_options(strategy.name, 4);
      other.precision = precision;
      expect_same(trained_by(other), expected);
    }
  }
}

TEST(Lion, KeepsOneMomentOfTheTwoOfAdamW) {
  TrainerOptions options = lion_options("zero1", 4);
  const auto bytes = [](const TrainerOptions& o) {
    return trained_by(o).summary.measured_memory.by_category[MemoryCategory::kOptimizer];
  };
  const std::int64_t of_lion = bytes(options);
  options.optimizer.name = "adamw";
  const std::int64_t of_adamw = bytes(options);
  options.optimizer.name = "sgd";
  const std::int64_t of_sgd = bytes(options);  // master weights
  EXPECT_GT(of_lion, of_sgd);
  EXPECT_EQ(of_adamw - of_sgd, 2 * (of_lion - of_sgd));
}

TEST(Lion, HasTheSameBitsWhereItsStateIsOnTheHostOrOnDisk) {
  const test::TemporaryFolder folder;
  const Trained expected = trained_by(lion_options("full_shard", 2));
  for (const char* const where : {"host", "disk"}) {
    SCOPED_TRACE(where);
    TrainerOptions options = lion_options("full_shard", 2);
    options.offload_optimizer = parse_offload(where);
    options.offload_path = folder.path(".");
    expect_same(trained_by(options), expected);
  }
}

TEST(Lion, GoesOnFromACheckpointAtAnotherNumberOfRanks) {
  const test::TemporaryFolder folder;
  const Trained expected = trained_by(lion_options("full_shard", 4));
  TrainerOptions first = lion_options("zero2", 2);
  first.checkpoints.folder = folder.path("run");
  first.stop_after = 3;
  trained_by(first);
  TrainerOptions rest = lion_options("full_shard", 4);
  rest.checkpoints.resume = folder.path("run/step_3");
  EXPECT_EQ(trained_by(rest).summary.parameters_sha256, expected.summary.parameters_sha256);
}

TEST(Lion, FiveStepsStayWithThePaperInDoublePrecision) {
  const TrainerOptions options = lion_options("full_shard", 2);
  TrainerOptions still = options;  // a rate of 0 for the parameters as they are initialised
  still.learning_rate.peak = 0.0;
  still.steps = 1;
  test::PlainLoop loop(trained_by(still).summary.parameters);
  const double rate = options.learning_rate.peak, beta1 = 0.9, beta2 = 0.99;
  const auto weight_decay = static_cast<double>(*options.optimizer.weight_decay);
  const auto update = [&](test::PlainLoop::Entry& entry, std::size_t i, double g) {
    double &w = entry.value[i], &m = entry.momentum[i];
    const double c = beta1 * m + (1 - beta1) * g;
    const double sign = c > 0 ? 1.0 : c < 0 ? -1.0 : 0.0;
    w -= rate * (sign + weight_decay * entry.decay * w);
    m = beta2 * m + (1 - beta2) * g;
  };
  const Trained run = trained_by(options);
  ASSERT_EQ(run.losses.size(), 5U);
  for (std::int64_t step = 0; step < 5; ++step) {
    const double loss = loop.step(step, update);
    EXPECT_NEAR(run.losses[static_cast<std::size_t>(step)], loss, 1e-6 * loss) << step;
  }
  for (const FullParameter& parameter : run.summary.parameters) {
    const std::vector<double>& expected = loop.value(parameter.name);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(parameter.values[i], expected[i], 2e-6) << parameter.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::lion_test
