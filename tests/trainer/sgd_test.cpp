#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "support/plain_loop.h"
#include "support/tiny_model.h"
#include "tessera/core/error.h"
#include "tessera/trainer/same_bits.h"
#include "tessera/trainer/trainer.h"

// SGD through Trainer: with every strategy, and against a loop in double precision.
namespace tessera::sgd_test {
namespace {

using test::tiny_model;
using test::TinyData;

struct Variant {
  double momentum = 0.0;
  bool nesterov = false;
};
const std::vector<Variant> kVariants{{}, {0.9, false}, {0.9, true}};

/// Steps of 16 samples on 1, 2 or 4 ranks.
TrainerOptions sgd_options(const Variant& variant, const std::string& strategy, int ranks) {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = ranks;
  options.steps = 5;
  options.micro_batch = 4;
  options.accumulate = 4 / ranks;
  options.optimizer.name = "sgd";
  options.optimizer.hyperparameters = {{"momentum", variant.momentum},
                                       {"nesterov", variant.nesterov ? 1.0 : 0.0}};
  options.optimizer.weight_decay = 0.05F;
  options.optimizer.clip_norm = 0.0;
  options.learning_rate = {.kind = LearningRateSchedule::Kind::kConstant, .peak = 0.1};
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

TEST(Sgd, EveryStrategyGivesTheBitsThatThePlansPromise) {
  const Model model = tiny_model();
  for (const Variant& variant : kVariants) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(concat("momentum ", variant.momentum, variant.nesterov ? ", Nesterov" : "",
                          precision == DType::kBFloat16 ? ", bf16" : ""));
      TrainerOptions options = sgd_options(variant, "full_shard", 4);
      options.precision = precision;
      const Trained expected = trained_by(options);
      EXPECT_LT(expected.losses.back(), expected.losses.front());
      const BitsByStrategy bits = compare_bits(model, resolved(options));
      EXPECT_THAT(bits.others, ::testing::IsEmpty());  // without accumulation
      for (const std::string& strategy : bits.same) {
        TrainerOptions other = options;
        other.strategy = strategy;
        const Trained run = trained_by(other);
        EXPECT_EQ(run.losses, expected.losses) << strategy;
        EXPECT_EQ(run.summary.parameters_sha256, expected.summary.parameters_sha256) << strategy;
      }
      for (const int ranks : {1, 2}) {
        TrainerOptions fewer = sgd_options(variant, "full_shard", ranks);
        fewer.precision = precision;
        const Trained run = trained_by(fewer);
        EXPECT_EQ(run.losses, expected.losses) << ranks;
        EXPECT_EQ(run.summary.parameters_sha256, expected.summary.parameters_sha256) << ranks;
      }
    }
  }
}

TEST(Sgd, MemoryIsAsPredictedAndHasNoMoreThanItKeeps) {
  for (const Strategy& strategy : strategies()) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<std::int64_t> optimizer_bytes;
      for (const Variant& variant : kVariants) {
        TrainerOptions options = sgd_options(variant, strategy.name, 4);
        options.precision = precision;
        const TrainingSummary summary = trained_by(options).summary;
        EXPECT_EQ(summary.predicted_memory, summary.measured_memory) << strategy.name;
        for (const Traffic& counted : summary.counted_traffic) {
          EXPECT_EQ(counted, summary.predicted_traffic) << strategy.name;
        }
        optimizer_bytes.push_back(summary.measured_memory.by_category[MemoryCategory::kOptimizer]);
      }
      EXPECT_LT(optimizer_bytes[0], optimizer_bytes[1]) << strategy.name;
      EXPECT_EQ(optimizer_bytes[1], optimizer_bytes[2]) << strategy.name;
      TrainerOptions adamw = sgd_options({}, strategy.name, 4);
      adamw.precision = precision;
      adamw.optimizer = {};
      const std::int64_t of_adamw =
          trained_by(adamw).summary.measured_memory.by_category[MemoryCategory::kOptimizer];
      EXPECT_EQ(of_adamw - optimizer_bytes[0], 2 * (optimizer_bytes[1] - optimizer_bytes[0]))
          << strategy.name;  // two moments instead of one momentum
    }
  }
}

/// torch.optim.SGD.
test::PlainLoop::Update sgd_update(const TrainerOptions& options) {
  const double momentum = options.optimizer.hyperparameters.at("momentum");
  const bool nesterov = options.optimizer.hyperparameters.at("nesterov") != 0.0;
  const double rate = options.learning_rate.peak;
  const double weight_decay = static_cast<double>(*options.optimizer.weight_decay);
  return [=](test::PlainLoop::Entry& entry, std::size_t i, double gradient) {
    const double g = gradient + weight_decay * entry.decay * entry.value[i];
    double& b = entry.momentum[i];
    b = momentum * b + g;
    entry.value[i] -= rate * (nesterov ? g + momentum * b : b);
  };
}

TEST(Sgd, FiveStepsStayWithAPlainLoopInDoublePrecision) {
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(concat("momentum ", variant.momentum, variant.nesterov ? ", Nesterov" : ""));
    const TrainerOptions options = sgd_options(variant, "full_shard", 2);
    // A rate of 0 for the parameters as they are initialised.
    TrainerOptions still = options;
    still.learning_rate.peak = 0.0;
    still.steps = 1;
    test::PlainLoop loop(trained_by(still).summary.parameters);
    const Trained run = trained_by(options);
    ASSERT_EQ(run.losses.size(), 5U);
    for (std::int64_t step = 0; step < 5; ++step) {
      const double loss = loop.step(step, sgd_update(options));
      EXPECT_NEAR(run.losses[static_cast<std::size_t>(step)], loss, 1e-6 * loss) << step;
    }
    for (const FullParameter& parameter : run.summary.parameters) {
      const std::vector<double>& expected = loop.value(parameter.name);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(parameter.values[i], expected[i], 2e-6) << parameter.name << " " << i;
      }
    }
  }
}

// Updates far below bf16's resolution must not be lost.
TEST(Sgd, MasterWeightsKeepWhatBfloat16CannotHold) {
  const auto of = [](DType precision, double rate, std::int64_t steps) {
    TrainerOptions options = sgd_options({}, "full_shard", 2);
    options.precision = precision;
    options.learning_rate.peak = rate;
    options.steps = steps;
    return trained_by(options).summary.parameters;
  };
  const auto initial = of(DType::kFloat32, 0.0, 1);
  const auto fp32 = of(DType::kFloat32, 1e-4, 5);
  const auto bf16 = of(DType::kBFloat16, 1e-4, 5);
  for (std::size_t p = 0; p < fp32.size(); ++p) {
    double moved = 0.0, apart = 0.0;
    for (std::size_t i = 0; i < fp32[p].values.size(); ++i) {
      moved = std::fmax(moved, std::fabs(fp32[p].values[i] - initial[p].values[i]));
      apart = std::fmax(apart, std::fabs(fp32[p].values[i] - bf16[p].values[i]));
    }
    EXPECT_GT(moved, 0.0) << fp32[p].name;
    EXPECT_LT(apart, 0.1 * moved) << fp32[p].name;
  }
}

TEST(Sgd, NesterovNeedsMomentumAndMomentumNeedsSgd) {
  const Model model = tiny_model();
  const TinyData data;
  const auto refusal = [&](const TrainerOptions& options) -> std::string {
    try {
      Trainer(model, data, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refusal(sgd_options({0.0, true}, "zero1", 2)),
              ::testing::HasSubstr("nesterov needs a momentum above 0"));
  TrainerOptions adamw = sgd_options({0.9, false}, "zero1", 2);
  adamw.optimizer.name = "adamw";
  EXPECT_THAT(refusal(adamw),
              ::testing::AllOf(::testing::HasSubstr("momentum"), ::testing::HasSubstr("adamw")));
}

}  // namespace
}  // namespace tessera::sgd_test
