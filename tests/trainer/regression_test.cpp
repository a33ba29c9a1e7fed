// A model of floating-point inputs and targets: every strategy trains it to the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer.h"

namespace tessera::regression_test {
namespace {

/// The first layer takes the batch's input as any other takes its predecessor's output.
class RegressionLayer : public Layer {
 public:
  RegressionLayer(const std::string& name, std::int64_t inputs, std::int64_t outputs)
      : Layer(name, "Regression") {
    parameters_ = {{name + ".weight", {outputs, inputs}, Initializer::normal(0.5F)},
                   {name + ".bias", {outputs}, Initializer::constant(0.0F), 0.0F}};
  }
  Value forward(Tape& tape, const Value& x, std::span<Parameter> p) const override {
    Value y = ops::linear(tape, x, p[0], &p[1]);
    if (name() == "first") return ops::relu(tape, std::move(y));
    if (name() == "second") return ops::silu(tape, std::move(y));
    return ops::squared_error(tape, std::move(y), tape.batch().targets);
  }
};

/// Two functions of three numbers.
class Functions : public BatchSource {
 public:
  Shape input_shape(std::int64_t n) const override { return {n, 3}; }
  DType input_dtype() const override { return DType::kFloat32; }
  Shape target_shape(std::int64_t n) const override { return {n, 2}; }
  DType target_dtype() const override { return DType::kFloat32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t i = 0; i < n; ++i) {
      float* const x = inputs.as<float>() + 3 * i;
      for (int k = 0; k < 3; ++k) {
        x[k] = static_cast<float>(std::sin(static_cast<double>((first + i) * (k + 2))));
      }
      targets.as<float>()[2 * i] = x[0] * x[1];
      targets.as<float>()[2 * i + 1] = std::abs(x[2]);
    }
    return n;
  }
};

Model regression_model() {
  Model model;
  model.name = "regression";
  model.layers.push_back(std::make_unique<RegressionLayer>("first", 3, 17));
  model.layers.push_back(std::make_unique<RegressionLayer>("second", 17, 11));
  model.layers.push_back(std::make_unique<RegressionLayer>("output", 11, 2));
  return model;
}

TrainerOptions options_for(DType precision) {
  TrainerOptions options{.steps = 60, .micro_batch = 8, .precision = precision};
  options.learning_rate.peak = 0.02;
  options.device = DeviceChoice::kCpu;
  options.threads_per_rank = 1;
  return options;
}

class Regression : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Precisions, Regression, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST_P(Regression, EveryStrategyLearnsTheSameBits) {
  const Model model = regression_model();
  const Functions data;
  TrainerOptions options = options_for(GetParam());
  options.accumulate = 4;  // one rank is as four
  const std::string alone = Trainer(model, data, options).train().parameters_sha256;
  options.accumulate = 1;
  options.ranks = 4;
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    options.strategy = strategy.name;
    const TrainingSummary summary = Trainer(model, data, options).train();
    EXPECT_LT(summary.last_loss, 0.3 * summary.first_loss);
    EXPECT_EQ(summary.parameters_sha256, alone);
    EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
  }
}

TEST_P(Regression, RecomputationChangesNoBit) {
  const Model model = regression_model();
  const Functions data;
  TrainerOptions options = options_for(GetParam());
  options.ranks = 2;
  const std::string kept = Trainer(model, data, options).train().parameters_sha256;
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    options.policy.recompute = recompute;
    const TrainingSummary summary = Trainer(model, data, options).train();
    EXPECT_EQ(summary.parameters_sha256, kept) << to_string(recompute);
    EXPECT_EQ(summary.measured_memory, summary.predicted_memory) << to_string(recompute);
  }
}

// torch.nn.functional.mse_loss is the mean over all elements, and so is ours over ranks, samples
// and columns; before the first update that is easily computed: a model whose output is 0.
TEST(RegressionLoss, IsTheMeanOverAllElements) {
  class Zero : public Layer {
   public:
    Zero() : Layer("zero", "Zero") {
      parameters_ = {{"weight", {2, 3}, Initializer::constant(0.0F)}};
    }
    Value forward(Tape& tape, const Value& x, std::span<Parameter> p) const override {
      return ops::squared_error(tape, ops::linear(tape, x, p[0], nullptr), tape.batch().targets);
    }
  };
  Model model;
  model.layers.push_back(std::make_unique<Zero>());
  const Functions data;
  TrainerOptions options = options_for(DType::kFloat32);
  options.ranks = 3;
  options.steps = 1;
  std::vector<float> inputs(24 * 3), targets(24 * 2);
  data.fill(0, 24, TensorView(inputs.data(), DType::kFloat32, Shape{24, 3}),
            TensorView(targets.data(), DType::kFloat32, Shape{24, 2}));
  double sum = 0.0;
  for (const float target : targets)
    sum += static_cast<double>(target) * static_cast<double>(target);
  EXPECT_NEAR(Trainer(model, data, options).train().first_loss, sum / 48.0, 1e-6);
}

}  // namespace
}  // namespace tessera::regression_test
