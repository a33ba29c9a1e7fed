#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/tiny_model.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/trainer/session.h"

// Session::forward: what the last layer returns for inputs of the caller's own.
namespace tessera::forward_test {
namespace {

using test::kClasses;
using test::kFeatures;
using test::tiny_model;
using test::TinyData;
using ::testing::HasSubstr;

constexpr std::int64_t kSamples = 11;  // fills no batch of 2 or 4 ranks

TrainerOptions options_for(const std::string& strategy, int ranks) {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = ranks;
  options.steps = 3;
  options.micro_batch = 2;
  options.accumulate = 4 / ranks;
  options.learning_rate.peak = 0.03;
  options.threads_per_rank = 1;
  options.evaluation_samples = kSamples;
  options.forward = true;
  return options;
}

struct Samples {
  std::vector<float> inputs = std::vector<float>(kSamples * kFeatures);
  std::vector<std::int32_t> targets = std::vector<std::int32_t>(kSamples);

  Samples() {
    TinyData().fill(0, kSamples, view(), {targets.data(), DType::kInt32, Shape{kSamples}});
  }
  TensorView view() { return {inputs.data(), DType::kFloat32, Shape{kSamples, kFeatures}}; }
};

/// The mean cross-entropy of logits, in double precision.
double loss_of(const std::vector<float>& logits, const std::vector<std::int32_t>& targets) {
  double loss = 0.0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    double sum = 0.0;
    for (std::size_t c = 0; c < kClasses; ++c) {
      sum += std::exp(static_cast<double>(logits[i * kClasses + c]));
    }
    loss += std::log(sum) -
            static_cast<double>(logits[i * kClasses + static_cast<std::size_t>(targets[i])]);
  }
  return loss / static_cast<double>(targets.size());
}

TEST(SessionForward, ReturnsTheLogitsOfTheLossWithEveryStrategy) {
  const Model model = tiny_model();
  const TinyData data;
  Samples samples;
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<float> expected;
    for (const int ranks : {1, 2, 4}) {
      for (const Strategy& strategy : strategies()) {
        if (strategy.hybrid && ranks < 4) continue;
        SCOPED_TRACE(concat(strategy.name, " on ", ranks, " ranks in ", to_string(precision)));
        TrainerOptions options = options_for(strategy.name, ranks);
        options.precision = precision;
        Session session(model, data, options, &data);
        const Session::Outputs before = session.forward(samples.view());
        while (session.step()) {
        }
        const Session::Outputs after = session.forward(samples.view());
        EXPECT_EQ(after.shape, (Shape{kSamples, kClasses}));
        EXPECT_NE(after.values, before.values);
        EXPECT_NEAR(loss_of(after.values, samples.targets), session.evaluate().loss, 2e-6);
        if (expected.empty()) expected = before.values;
        EXPECT_EQ(before.values, expected);
      }
    }
  }
}

TEST(SessionForward, TakesAnyNumberOfSamples) {
  const Model model = tiny_model();
  const TinyData data;
  Samples samples;
  Session session(model, data, options_for("full_shard", 2));
  const Session::Outputs all = session.forward(samples.view());
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const Session::Outputs one = session.forward(samples.view().narrow(0, i, 1));
    ASSERT_EQ(one.shape, (Shape{1, kClasses}));
    for (std::int64_t c = 0; c < kClasses; ++c) {
      EXPECT_EQ(one.values[static_cast<std::size_t>(c)],
                all.values[static_cast<std::size_t>(i * kClasses + c)]);
    }
  }
}

TEST(SessionForward, LeavesTheRunAsItIs) {
  const Model model = tiny_model();
  const TinyData data;
  Samples samples;
  const auto losses_of = [&](bool asks) {
    TrainerOptions options = options_for("full_shard", 2);
    options.forward = asks;
    Session session(model, data, options);
    std::vector<double> losses;
    while (const auto record = session.step()) {
      losses.push_back(record->loss);
      if (asks) session.forward(samples.view());
    }
    return losses;
  };
  EXPECT_EQ(losses_of(true), losses_of(false));
}

TEST(SessionForward, NeedsTheMemoryOfThePlan) {
  const Model model = tiny_model();
  const TinyData data;
  Samples samples;
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions options = options_for("full_shard", 2);
    options.precision = precision;
    Session session(model, data, options);
    session.step();
    session.forward(samples.view());
    for (const RankUse& use : session.use()) EXPECT_EQ(use.memory, session.plan().memory);
  }
}

TEST(SessionForward, GoesOnFromACheckpoint) {
  const test::TemporaryFolder folder;
  const Model model = tiny_model();
  const TinyData data;
  Samples samples;
  std::vector<float> expected;
  {
    Session session(model, data, options_for("full_shard", 2));
    while (session.step()) {
    }
    session.save(folder.path("run"));
    expected = session.forward(samples.view()).values;
  }
  TrainerOptions options = options_for("no_shard", 4);
  options.steps = 4;
  options.checkpoints.resume = folder.path("run/step_3");
  EXPECT_EQ(Session(model, data, options).forward(samples.view()).values, expected);
}

template <typename Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(SessionForward, SaysWhatDoesNotFit) {
  const Model model = tiny_model();
  const TinyData data;
  Samples samples;
  TrainerOptions options = options_for("full_shard", 2);
  Session session(model, data, options);
  const TensorView view = samples.view();
  EXPECT_THAT(refusal([&] { session.forward(view.flat().narrow(0, 0, kFeatures + 1)); }),
              HasSubstr("inputs (6) of fp32 are not whole samples, each (1, 5) of fp32"));
  EXPECT_THAT(refusal([&] {
                session.forward({view.data, DType::kInt32, view.shape});
              }),
              HasSubstr("of int32 are not whole samples"));
  options.forward = false;
  Session unplanned(model, data, options);
  EXPECT_THAT(refusal([&] { unplanned.forward(view); }), HasSubstr("set TrainerOptions::forward"));
}

/// Errors of the model and the data say where they are.
class WideData : public TinyData {
 public:
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView x, TensorView y) const override {
    const std::int64_t items = TinyData::fill(first, n, x, y);
    for (std::int64_t i = 0; i < n; ++i) {
      if (first + i == 13) y.as<std::int32_t>()[i] = 7;
    }
    return items;
  }
};

TEST(SessionErrors, ATargetThatIsNoClassNamesItsStepAndSample) {
  const Model model = tiny_model();
  const WideData data;
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(
        refusal([&] {
          Session session(model, data, options_for("full_shard", ranks));
          while (session.step()) {
          }
        }),
        HasSubstr("step 2: target 0 of sample 13 is 7, and the model has the classes 0 to 2"));
  }
}

TEST(SessionErrors, AShapeThatDoesNotFitNamesItsLayer) {
  Model model;
  model.layers.push_back(std::make_unique<test::DenseLayer>("first", kFeatures, 13, false));
  model.layers.push_back(std::make_unique<test::DenseLayer>("h.0", 12, kClasses, true));
  const TinyData data;
  EXPECT_THAT(refusal([&] { Session(model, data, options_for("full_shard", 2)); }),
              HasSubstr("layer 'h.0' (Dense): linear: x"));
}

}  // namespace
}  // namespace tessera::forward_test
