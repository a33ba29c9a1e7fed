#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/golden_folder.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/gpt_sampler.h"
#include "tessera/model/hugging_face.h"

// Tuned prompts in front of small random models against what PEFT computes with the same folders.
namespace tessera::prompt_golden_test {
namespace {

using namespace test;
using testing::HasSubstr;

const std::string kGolden = TESSERA_SOURCE_DIR "/tests/model/golden/";
constexpr const char* kWeights = "adapter_model.safetensors";

PretrainedGpt base_of(const std::string& name) {
  return open_hugging_face(kGolden + (name == "gpt2" ? "adapters/gpt2_base" : "families/" + name));
}

class PromptGolden : public ::testing::TestWithParam<std::string> {
 protected:
  PromptGolden()
      : folder_(kGolden + "prompts/" + GetParam()),
        golden_(folder_),
        tuned_(open_adapter(base_of(GetParam()), folder_)),
        model_(make_gpt(tuned_.config())),
        initial_(values_in(tuned_, model_)) {}

  InitialValues written(const InitialValues& values) const {
    TemporaryFolder folder;
    PretrainedWriter writer = write_adapter(folder.path("prompt"), tuned_.config(), "base");
    for (const auto& [name, own] : values) writer.write(name, own);
    writer.finish();
    return stored_tensors(folder.path("prompt"), kWeights);
  }

  std::string folder_;
  Golden golden_;
  PretrainedGpt tuned_;
  Model model_;
  InitialValues initial_;
};

TEST_P(PromptGolden, LogitsAndGradientsAreThoseOfPeft) {
  for (const bool selective : {false, true}) {
    const Computed computed = compute(golden_, model_, initial_, DType::kFloat32, selective);
    EXPECT_LT(relative_error(computed.logits, golden_.floats("logits")), 1e-5);
    const InitialValues gradients = written(computed.gradients);
    ASSERT_EQ(gradients.size(), 1U);
    EXPECT_LT(relative_error(gradients.at("prompt_embeddings"),
                             golden_.floats("gradient/prompt_embeddings")),
              1e-5);
  }
}

TEST_P(PromptGolden, TwentyStepsStayWithPeftUnderSomeStrategies) {
  expect_golden_steps(golden_, model_, initial_);
}

TEST_P(PromptGolden, FoldersGoRoundTrip) {
  EXPECT_EQ(written(initial_), stored_tensors(folder_, kWeights));
  const GptConfig& config = tuned_.config();
  EXPECT_EQ(parse_adapter_json(to_adapter_json(config.adapter, config), "", config),
            config.adapter);
  EXPECT_EQ(parse_gpt_configuration(configuration_of(config)), config);
}

TEST_P(PromptGolden, SamplingSeesThePrompt) {
  GptSampler sampler(tuned_.config(), read_from(initial_), {.threads = 1});
  const Shape all = golden_.shape("logits");
  const std::vector<std::int32_t> tokens = golden_.ints("tokens");
  const std::span<const float> logits =
      sampler.next_logits(std::span(tokens).first(static_cast<std::size_t>(all[1])));
  const std::vector<float> expected = golden_.floats("logits");
  const auto last = static_cast<std::size_t>((all[1] - 1) * all[2]);
  EXPECT_LT(
      relative_error(
          {logits.begin(), logits.end()},
          std::vector<float>(expected.begin() + static_cast<std::ptrdiff_t>(last),
                             expected.begin() + static_cast<std::ptrdiff_t>(last + logits.size()))),
      1e-4);
}

TEST_P(PromptGolden, CannotBeMerged) {
  TemporaryFolder folder;
  PretrainedWriter writer = write_hugging_face(folder.path("merged"), base_of(GetParam()).config());
  try {
    write_merged(tuned_, writer);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot be merged"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, PromptGolden, ::testing::Values("llama", "mistral", "gpt2"),
                         [](const auto& test) { return test.param; });

TEST(PromptTuning, ReadsAFlagAndRefusesByName) {
  const GptConfig llama = base_of("llama").config();
  const auto parse = [&](const char* text) { return parse_adapter("prompt_tuning", text, llama); };
  EXPECT_EQ(parse("tokens=4,init=random").prompt_tokens(), 4);
  const auto error_of = [&](const auto& work) -> std::string {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of([&] { parse(""); }), HasSubstr("needs tokens=N"));
  EXPECT_THAT(error_of([&] { parse("tokens=4,init=text"); }), HasSubstr("init=text is not built"));
  EXPECT_THAT(error_of([&] { parse("tokens=40"); }),
              HasSubstr("leaves none of the model's context of 32"));
  const auto parsed = [&](const std::string& more) {
    return error_of(
        [&] { parse_adapter_json("{\"peft_type\": \"PROMPT_TUNING\"" + more + "}", "f", llama); });
  };
  EXPECT_THAT(parsed(""), HasSubstr("num_virtual_tokens is missing"));
  EXPECT_THAT(parsed(", \"num_virtual_tokens\": 3, \"token_dim\": 8"),
              HasSubstr("token_dim is 8; the model has 16 channels"));
  EXPECT_THAT(parsed(", \"num_virtual_tokens\": 3, \"new\": 8"),
              HasSubstr("does not know this key"));
  EXPECT_EQ(parsed(", \"num_virtual_tokens\": 3, \"prompt_tuning_init\": \"TEXT\""), "");
  EXPECT_THAT(error_of([&] {
                with_adapter(base_of("llama"),
                             {.kind = PromptOptions{.tokens = 3, .initialization = "TEXT"}});
              }),
              HasSubstr("prompt_tuning_init is \"TEXT\""));
}

}  // namespace
}  // namespace tessera::prompt_golden_test
