#include <gtest/gtest.h>

#include "support/golden_run.h"

// Twenty AdamW steps of a small GPT-2 against PyTorch, with every strategy.
namespace tessera::test::golden_test {
namespace {

constexpr double kBound = 1e-4;  // relative: largest difference over largest magnitude

/// A key's bias adds the same number to all scores of a query, which softmax ignores: its gradient
/// is zero, and what is computed is rounding error, which Adam blows up to steps of the learning
/// rate. PyTorch in fp32 is 0.8 % away from itself in fp64 there. So this part may drift by two
/// runs' worth of steps; it is checked for that and taken out of the comparison.
void settle_key_biases(std::vector<float>& actual, const std::vector<float>& expected,
                       double drift) {
  const std::size_t width = expected.size() / 3;
  for (std::size_t i = width; i < 2 * width; ++i) {
    EXPECT_NEAR(actual[i], expected[i], drift);
    actual[i] = expected[i];
  }
}

TEST(Golden, TwentyStepsStayWithPyTorchUnderEveryStrategy) {
  const Golden golden(TESSERA_SOURCE_DIR "/tests/model/golden/gpt2");
  const auto& config = golden.index().at("config");
  const Model model = make_gpt({.vocab_size = config.at("vocab_size"),
                                .context_length = config.at("context_length"),
                                .layers = config.at("layers"),
                                .heads = config.at("heads"),
                                .width = config.at("width")});
  InitialValues initial;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      initial[spec.name] = golden.floats("initial/" + spec.name);
    }
  }
  const auto rate = golden.index().at("optimizer").at("learning_rate");
  const double drift = 2.0 * rate.get<double>() * static_cast<double>(golden.shape("tokens")[0]);
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(strategy.name);
      Trained trained = train_golden(golden, model, initial, strategy.name, ranks);
      EXPECT_LT(relative_error(trained.losses, golden.floats("step_loss")), kBound);
      EXPECT_LT(relative_error(trained.norms, golden.floats("step_gradient_norm")), kBound);
      for (FullParameter& parameter : trained.parameters) {
        const std::vector<float> expected = golden.floats("final/" + parameter.name);
        if (parameter.name.ends_with("c_attn.bias")) {
          settle_key_biases(parameter.values, expected, drift);
        }
        EXPECT_LT(relative_error(parameter.values, expected), kBound) << parameter.name;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test::golden_test
