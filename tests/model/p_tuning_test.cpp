#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/golden_folder.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/gpt_sampler.h"
#include "tessera/model/hugging_face.h"

// P-tuning of small random models against what PEFT computes. PEFT's folders have what the encoder
// makes; the encoder's own parameters are in the goldens.
namespace tessera::p_tuning_test {
namespace {

using namespace test;
using nlohmann::json;
using testing::HasSubstr;

const std::string kGolden = TESSERA_SOURCE_DIR "/tests/model/golden/";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kConfig = "adapter_config.json";

PretrainedGpt base_of(const std::string& family) {
  return open_hugging_face(kGolden +
                           (family == "gpt2" ? "adapters/gpt2_base" : "families/" + family));
}

json read_json(const std::string& path) { return json::parse(std::ifstream(path)); }

class PTuningGolden : public ::testing::TestWithParam<std::string> {
 protected:
  PTuningGolden()
      : folder_(kGolden + "prompts/" + GetParam() + "_encoder"),
        golden_(folder_),
        tuned_(open_adapter(base_of(GetParam()), folder_ + "/" + kConfig)),
        model_(make_gpt(tuned_.config())),
        initial_(values_in(base_of(GetParam()), make_gpt(base_of(GetParam()).config()))) {
    for (const ParameterSpec& spec : model_.layers.front()->parameters()) {
      if (!spec.trainable) continue;
      initial_[spec.name] = golden_.floats("parameter/" + spec.name);
    }
  }

  std::string folder_;
  Golden golden_;
  PretrainedGpt tuned_;
  Model model_;
  InitialValues initial_;
};

TEST_P(PTuningGolden, LogitsAndGradientsAreThoseOfPeft) {
  for (const bool selective : {false, true}) {
    const Computed computed = compute(golden_, model_, initial_, DType::kFloat32, selective);
    EXPECT_LT(relative_error(computed.logits, golden_.floats("logits")), 1e-5);
    ASSERT_EQ(computed.gradients.size(), 7U);
    for (const auto& [name, gradient] : computed.gradients) {
      EXPECT_LT(relative_error(gradient, golden_.floats("gradient/" + name)), 1e-5) << name;
    }
  }
}

TEST_P(PTuningGolden, TwentyStepsStayWithPeftUnderSomeStrategies) {
  expect_golden_steps(golden_, model_, initial_);
}

TEST_P(PTuningGolden, WritesWhatTheEncoderMakes) {
  TemporaryFolder folder;
  const std::string path = folder.path("prompt");
  PretrainedWriter writer = write_adapter(path, tuned_.config(), "");
  for (const auto& [name, own] : initial_) writer.write(name, own);
  writer.finish();
  const InitialValues written = stored_tensors(path, kWeights);
  const InitialValues expected = stored_tensors(folder_, kWeights);
  ASSERT_EQ(written.size(), 1U);
  EXPECT_LT(relative_error(written.at("prompt_embeddings"), expected.at("prompt_embeddings")),
            1e-6);
  json theirs = read_json(folder_ + "/" + kConfig);
  theirs.erase("auto_mapping");
  theirs.erase("peft_version");
  EXPECT_EQ(read_json(path + "/" + kConfig), theirs);
}

TEST_P(PTuningGolden, FoldersOfPeftSampleAndScoreWithoutTheEncoder) {
  const PretrainedGpt stored = open_adapter(base_of(GetParam()), folder_);
  EXPECT_TRUE(stored.config().adapter.prompt_encoder()->encoded);
  EXPECT_FALSE(tuned_.config().adapter.prompt_encoder()->encoded);
  const Model model = make_gpt(stored.config());
  const InitialValues values = values_in(stored, model);
  const Computed computed = compute(golden_, model, values, DType::kFloat32, false);
  const std::vector<float> expected = golden_.floats("logits");
  EXPECT_LT(relative_error(computed.logits, expected), 1e-5);
  const Shape all = golden_.shape("logits");
  const std::vector<std::int32_t> tokens = golden_.ints("tokens");
  const auto from = expected.begin() + static_cast<std::ptrdiff_t>((all[1] - 1) * all[2]);
  const std::vector<float> last(from, from + static_cast<std::ptrdiff_t>(all[2]));
  for (const auto& [config, read] :
       {std::pair{stored.config(), values}, std::pair{tuned_.config(), initial_}}) {
    GptSampler sampler(config, read_from(read), {.threads = 1});
    const std::span<const float> logits =
        sampler.next_logits(std::span(tokens).first(static_cast<std::size_t>(all[1])));
    EXPECT_LT(relative_error({logits.begin(), logits.end()}, last), 1e-4);
  }
}

TEST_P(PTuningGolden, ConfigurationsGoRoundTrip) {
  for (const bool encoded : {false, true}) {
    GptConfig config = tuned_.config();
    std::get<PromptEncoderOptions>(config.adapter.kind).encoded = encoded;
    EXPECT_EQ(parse_adapter_json(to_adapter_json(config.adapter, config), "", config),
              config.adapter);
    EXPECT_EQ(parse_gpt_configuration(configuration_of(config)), config);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PTuningGolden, ::testing::Values("llama", "gpt2"),
                         [](const auto& test) { return test.param; });

TEST(PTuning, ReadsAFlagAndRefusesByName) {
  const GptConfig llama = base_of("llama").config();
  const auto parse = [&](const char* text) { return parse_adapter("p_tuning", text, llama); };
  EXPECT_EQ(*parse("tokens=4").prompt_encoder(), (PromptEncoderOptions{.tokens = 4, .hidden = 16}));
  EXPECT_EQ(parse("tokens=4,hidden=7,encoder=mlp").prompt_encoder()->hidden, 7);
  const auto error_of = [&](const auto& work) -> std::string {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of([&] { parse(""); }), HasSubstr("P-tuning needs tokens=N"));
  EXPECT_THAT(error_of([&] { parse("tokens=4,encoder=lstm"); }),
              HasSubstr("encoder=lstm is not built; PEFT recommends the MLP"));
  EXPECT_THAT(error_of([&] { parse("tokens=4,hidden=0"); }), HasSubstr("hidden is 0"));
  EXPECT_THAT(error_of([&] { parse("tokens=32"); }), HasSubstr("leaves none of the model's"));
  const auto parsed = [&](const std::string& more) {
    const std::string text =
        R"({"peft_type": "P_TUNING", "num_virtual_tokens": 3, "encoder_hidden_size": 8)" + more;
    return error_of([&] { parse_adapter_json(text + "}", "f", llama); });
  };
  EXPECT_EQ(parsed(R"(, "encoder_reparameterization_type": "MLP", "encoder_num_layers": 2)"), "");
  EXPECT_THAT(parsed(R"(, "encoder_reparameterization_type": "LSTM")"),
              HasSubstr("encoder_reparameterization_type is \"LSTM\"; Tessera has the encoder "
                        "\"MLP\""));
  EXPECT_THAT(parsed(R"(, "token_dim": 8)"), HasSubstr("the model has 16 channels"));
  EXPECT_THAT(parsed(R"(, "inference_mode": 1)"), HasSubstr("inference_mode is 1"));
}

}  // namespace
}  // namespace tessera::p_tuning_test
