#include <gtest/gtest.h>

#include "support/golden_folder.h"
#include "temporary_folder.h"
#include "tessera/model/hugging_face.h"

// Small random models of every family against what transformers computes with the same folders.
namespace tessera::family_golden_test {
namespace {

using namespace test;

constexpr const char* kFamilies = TESSERA_SOURCE_DIR "/tests/model/golden/families/";

const std::vector<std::string> kCases{"llama",        "llama3", "mistral",    "qwen2",
                                      "qwen2_window", "qwen3",  "phi3",       "phi3_longrope",
                                      "gemma2",       "gemma3", "llama_yarn", "qwen2_dynamic"};

class FamilyGolden : public ::testing::TestWithParam<std::string> {
 protected:
  FamilyGolden()
      : golden_(kFamilies + GetParam()),
        folder_(open_hugging_face(kFamilies + GetParam())),
        model_(make_gpt(folder_.config())),
        initial_(values_in(folder_, model_)) {}

  /// Bounds relative to the largest magnitude.
  void expect_golden(DType dtype, bool selective, double of_logits, double of_gradients) const {
    const Computed computed = compute(golden_, model_, initial_, dtype, selective);
    EXPECT_LT(relative_error(computed.logits, golden_.floats("logits")), of_logits);
    // Written as a folder they have transformers' names and shapes.
    TemporaryFolder written;
    PretrainedWriter writer = write_hugging_face(written.path("gradients"), folder_.config());
    for (const auto& [name, gradient] : computed.gradients) writer.write(name, gradient);
    writer.finish();
    const InitialValues gradients = stored_tensors(written.path("gradients"));
    EXPECT_EQ(gradients.size(), stored_tensors(folder_.path()).size());
    for (const auto& [name, gradient] : gradients) {
      EXPECT_LT(relative_error(gradient, golden_.floats("gradient/" + name)), of_gradients) << name;
    }
  }

  Golden golden_;
  PretrainedGpt folder_;
  Model model_;
  InitialValues initial_;
};

TEST_P(FamilyGolden, LogitsAndGradientsAreThoseOfTransformers) {
  for (const bool selective : {false, true}) expect_golden(DType::kFloat32, selective, 1e-5, 1e-5);
}

// The largest error of so few numbers varies; two and a half times that of transformers in bf16.
TEST_P(FamilyGolden, LogitsAndGradientsInBFloat16AreNear) {
  const auto& error = golden_.index().at("bf16_error");
  expect_golden(DType::kBFloat16, false, 2.5 * error.at("logits").get<double>(),
                2.5 * error.at("gradients").get<double>());
}

TEST_P(FamilyGolden, TwentyStepsStayWithTransformersUnderEveryStrategy) {
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(strategy.name);
      const Trained trained = train_golden(golden_, model_, initial_, strategy.name, ranks);
      EXPECT_LT(relative_error(trained.losses, golden_.floats("step_loss")), 1e-5);
      EXPECT_LT(relative_error(trained.norms, golden_.floats("step_gradient_norm")), 1e-4);
    }
  }
}

/// A folder that is read and written again has the same tensors and the same configuration.
TEST_P(FamilyGolden, FoldersGoRoundTrip) {
  TemporaryFolder written;
  PretrainedWriter writer = write_hugging_face(written.path("copy"), folder_.config());
  for (const auto& [name, values] : initial_) writer.write(name, values);
  writer.finish();
  EXPECT_EQ(stored_tensors(written.path("copy")), stored_tensors(folder_.path()));
  EXPECT_EQ(open_hugging_face(written.path("copy")).config(), folder_.config());
  EXPECT_EQ(parse_gpt_configuration(configuration_of(folder_.config())), folder_.config());
}

INSTANTIATE_TEST_SUITE_P(All, FamilyGolden, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tessera::family_golden_test
