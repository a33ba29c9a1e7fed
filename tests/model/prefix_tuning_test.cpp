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

// Prefix tuning of small random models against what PEFT computes. PEFT's folders have keys and
// values alone; the layers of a projection are in the goldens.
namespace tessera::prefix_tuning_test {
namespace {

using namespace test;
using nlohmann::json;
using testing::HasSubstr;

const std::string kGolden = TESSERA_SOURCE_DIR "/tests/model/golden/";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kStored = "prompt_embeddings";

PretrainedGpt base_of(const std::string& name) {
  const std::string family = name.substr(0, name.find('_'));
  return open_hugging_face(kGolden +
                           (family == "gpt2" ? "adapters/gpt2_base" : "families/" + family));
}

json read_json(const std::string& path) { return json::parse(std::ifstream(path)); }

class PrefixGolden : public ::testing::TestWithParam<std::string> {
 protected:
  PrefixGolden()
      : folder_(kGolden + "prompts/" + GetParam()),
        golden_(folder_),
        stored_(open_adapter(base_of(GetParam()), folder_)),
        projects_(GetParam().ends_with("projection")),
        tuned_(projects_ ? open_adapter(base_of(GetParam()), folder_ + "/" + kConfig) : stored_),
        model_(make_gpt(tuned_.config())),
        initial_(projects_ ? values_in(base_of(GetParam()), make_gpt(base_of(GetParam()).config()))
                           : values_in(stored_, model_)) {
    if (projects_) add_projection();
  }

  /// Our parameters of the projection: each block has rows of the last layer.
  void add_projection() {
    std::map<std::string, std::size_t> taken;
    for (const auto& layer : model_.layers) {
      for (const ParameterSpec& spec : layer->parameters()) {
        if (!spec.trainable) continue;
        const std::string theirs = their_name(spec.name);
        const std::vector<float> all = golden_.floats("parameter/" + theirs);
        const auto count = static_cast<std::size_t>(spec.shape.numel());
        const auto from = all.begin() + static_cast<std::ptrdiff_t>(taken[theirs]);
        initial_[spec.name].assign(from, from + static_cast<std::ptrdiff_t>(count));
        taken[theirs] += count;
      }
    }
  }

  static std::string their_name(const std::string& ours) {
    const std::size_t at = ours.find(".prefix_transform.");
    return at == std::string::npos
               ? ours
               : "prompt_encoder.transform.2." + ours.substr(ours.rfind('.') + 1);
  }

  /// Gradients or values as PEFT's modules have them, of a prefix as its file has it.
  InitialValues as_theirs(const InitialValues& ours) const {
    if (!projects_) return written(ours);
    InitialValues theirs;
    for (const auto& layer : model_.layers) {
      for (const ParameterSpec& spec : layer->parameters()) {
        if (!spec.trainable) continue;
        auto& all = theirs[their_name(spec.name)];
        all.insert(all.end(), ours.at(spec.name).begin(), ours.at(spec.name).end());
      }
    }
    return theirs;
  }

  InitialValues written(const InitialValues& values) const {
    TemporaryFolder folder;
    PretrainedWriter writer = write_adapter(folder.path("prefix"), tuned_.config(), "");
    for (const auto& [name, own] : values) writer.write(name, own);
    writer.finish();
    json theirs = read_json(folder_ + "/" + kConfig);
    theirs.erase("auto_mapping");
    theirs.erase("peft_version");
    EXPECT_EQ(read_json(folder.path("prefix") + "/" + kConfig), theirs);
    return stored_tensors(folder.path("prefix"), kWeights);
  }

  std::string folder_;
  Golden golden_;
  PretrainedGpt stored_;
  bool projects_;
  PretrainedGpt tuned_;
  Model model_;
  InitialValues initial_;
};

TEST_P(PrefixGolden, LogitsAndGradientsAreThoseOfPeft) {
  for (const bool selective : {false, true}) {
    const Computed computed = compute(golden_, model_, initial_, DType::kFloat32, selective);
    EXPECT_LT(relative_error(computed.logits, golden_.floats("logits")), 1e-5);
    for (const auto& [name, gradient] : as_theirs(computed.gradients)) {
      EXPECT_LT(relative_error(gradient, golden_.floats("gradient/" + name)), 1e-5) << name;
    }
  }
}

TEST_P(PrefixGolden, TwentyStepsStayWithPeftUnderSomeStrategies) {
  expect_golden_steps(golden_, model_, initial_);
}

TEST_P(PrefixGolden, FoldersGoRoundTrip) {
  const InitialValues expected = stored_tensors(folder_, kWeights);
  const InitialValues actual = written(initial_);
  ASSERT_EQ(actual.size(), 1U);
  if (projects_) {
    EXPECT_LT(relative_error(actual.at(kStored), expected.at(kStored)), 1e-6);
  } else {
    EXPECT_EQ(actual, expected);
  }
  for (const GptConfig& config : {tuned_.config(), stored_.config()}) {
    EXPECT_EQ(parse_adapter_json(to_adapter_json(config.adapter, config), "", config),
              config.adapter);
    EXPECT_EQ(parse_gpt_configuration(configuration_of(config)), config);
  }
}

TEST_P(PrefixGolden, FoldersOfPeftSampleAndScore) {
  EXPECT_EQ(stored_.config().adapter.is_encoded(), projects_);
  const Model model = make_gpt(stored_.config());
  const InitialValues values = values_in(stored_, model);
  const Computed computed = compute(golden_, model, values, DType::kFloat32, false);
  const std::vector<float> expected = golden_.floats("logits");
  EXPECT_LT(relative_error(computed.logits, expected), 1e-5);
  const Shape all = golden_.shape("logits");
  const std::vector<std::int32_t> tokens = golden_.ints("tokens");
  const auto from = expected.begin() + static_cast<std::ptrdiff_t>((all[1] - 1) * all[2]);
  const std::vector<float> last(from, from + static_cast<std::ptrdiff_t>(all[2]));
  for (const auto& [config, read] :
       {std::pair{stored_.config(), values}, std::pair{tuned_.config(), initial_}}) {
    GptSampler sampler(config, read_from(read), {.threads = 1});
    const std::span<const float> logits =
        sampler.next_logits(std::span(tokens).first(static_cast<std::size_t>(all[1])));
    EXPECT_LT(relative_error({logits.begin(), logits.end()}, last), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PrefixGolden,
                         ::testing::Values("llama_prefix", "mistral_prefix", "qwen3_prefix",
                                           "gpt2_prefix", "llama_projection", "gpt2_projection"),
                         [](const auto& test) { return test.param; });

TEST(PrefixTuning, ReadsAFlagAndRefusesByName) {
  const GptConfig llama = base_of("llama").config();
  const auto parse = [&](const char* text) { return parse_adapter("prefix_tuning", text, llama); };
  EXPECT_EQ(*parse("tokens=4").prefix(), (PrefixOptions{.tokens = 4, .hidden = 8}));
  EXPECT_EQ(*parse("tokens=4,projection=true,hidden=7,init=zero").prefix(),
            (PrefixOptions{.tokens = 4, .projection = true, .hidden = 7, .zero = true}));
  const auto error_of = [&](const auto& work) -> std::string {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of([&] { parse(""); }), HasSubstr("prefix tuning needs tokens=N"));
  EXPECT_THAT(error_of([&] { parse("tokens=4,init=text"); }), HasSubstr("it is random or zero"));
  EXPECT_THAT(error_of([&] { parse("tokens=4,projection=maybe"); }), HasSubstr("false or true"));
  EXPECT_THAT(error_of([&] { parse("tokens=4,projection=true,hidden=0"); }),
              HasSubstr("hidden is 0"));
  EXPECT_THAT(error_of([&] { parse("tokens=4,hidden=8"); }), HasSubstr("give projection=true"));
  EXPECT_THAT(error_of([&] { parse("tokens=32"); }), HasSubstr("leaves none of the model's"));
  const auto parsed = [&](const std::string& more) {
    const std::string text = R"({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 3)" + more;
    return error_of([&] { parse_adapter_json(text + "}", "f", llama); });
  };
  EXPECT_EQ(parsed(R"(, "token_dim": 8, "num_attention_heads": 2, "init_weights": null)"), "");
  EXPECT_THAT(parsed(R"(, "token_dim": 16)"), HasSubstr("the model has 8 channels"));
  EXPECT_THAT(parsed(R"(, "init_weights": "one")"), HasSubstr("init_weights is \"one\""));
  EXPECT_THAT(parsed(R"(, "prefix_projection": 3)"), HasSubstr("prefix_projection is 3"));
  EXPECT_THAT(parsed(R"(, "new": 3)"), HasSubstr("does not know this key"));
}

}  // namespace
}  // namespace tessera::prefix_tuning_test
