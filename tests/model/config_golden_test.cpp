#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"
#include "tessera/model/hugging_face.h"

// Keys of config.json that are absent, doubled or contradict each other, against the models that
// transformers makes of them (golden/make_config_golden.py).
namespace tessera::config_golden_test {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using ::testing::HasSubstr;

constexpr const char* kGolden = TESSERA_SOURCE_DIR "/tests/model/golden/configs.json";
constexpr std::int64_t kShort = 8, kLong = 24;  // tokens

/// Read here although version 5 refuses it: Phi-3's first files, which version 4 read.
constexpr std::string_view kOfVersion4 = "phi3_su";

/// What transformers computes and is refused here.
bool is_refused_here(const std::string& name) {
  const auto ends = {"_proportional", "a2_activation", "text_activation", "_both_ways"};
  return std::ranges::any_of(ends, [&](const char* end) { return name.ends_with(end); });
}

GptConfig read_config(const json& config) {
  TemporaryFolder folder;
  std::ofstream(folder.path("config.json")) << config;
  return hugging_face_config_of(folder.path(""));
}

const json& golden_cases() {
  static const json golden = json::parse(std::ifstream(kGolden));
  return golden.at("cases");
}

/// Of a configuration of the goldens, with other keys.
json with_keys(const std::string& name, const json& keys = json::object()) {
  json config = golden_cases().at(name).at("config");
  config.update(keys);
  return config;
}

void expect_near(const std::vector<float>& ours, const json& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double expected = theirs.at(i);
    EXPECT_NEAR(ours[i], expected, 1e-6 * std::abs(expected)) << i;
  }
}

void expect_same(const GptConfig& config, const json& golden) {
  if (config.family == GptFamily::kGpt2) {
    EXPECT_EQ(config.context_length, golden.at("context"));
    EXPECT_EQ(config.heads, golden.at("heads"));
    return;
  }
  // Where all layers are of one kind, the goldens have the frequencies of that kind twice.
  const bool all_windowed = config.family == GptFamily::kGemma3 && config.window != 0 &&
                            config.window_period == 0 && config.first_window_layer == 0;
  const RotaryConfig& windowed = config.window_rotary ? *config.window_rotary : config.rotary;
  const RotaryConfig& full = all_windowed ? windowed : config.rotary;
  expect_near(rotary_frequencies(config, full, kShort), golden.at("frequencies"));
  expect_near(rotary_frequencies(config, full, kLong), golden.at("long_frequencies"));
  EXPECT_NEAR(rotary_amplitude(config, full), golden.at("amplitude").get<double>(), 1e-6);
  if (golden.contains("window_frequencies") && config.window != 0) {
    expect_near(rotary_frequencies(config, windowed, kShort), golden.at("window_frequencies"));
    expect_near(rotary_frequencies(config, windowed, kLong), golden.at("window_long_frequencies"));
  }
  if (golden.contains("scaling")) {
    const double scalar = config.attention_scalar == 0.0 ? static_cast<double>(config.head_width)
                                                         : config.attention_scalar;
    EXPECT_DOUBLE_EQ(1.0 / std::sqrt(scalar), golden.at("scaling").get<double>());
    const auto cap = [](double value) { return value == 0.0 ? json() : json(value); };
    EXPECT_EQ(cap(config.attention_cap), golden.at("attention_cap"));
    EXPECT_EQ(cap(config.logit_cap), golden.at("logit_cap"));
  }
  EXPECT_EQ(config.kv_heads_used(), golden.at("kv_heads"));
  EXPECT_EQ(config.head_width_used(), golden.at("head_width"));
  EXPECT_EQ(config.norm_epsilon, golden.at("epsilon").get<float>());
  const bool gemma = golden.contains("scaling");  // whose classes keep a window that no layer has
  if (config.window != 0 || !gemma) {
    EXPECT_EQ(config.window == 0 ? json() : json(config.window), golden.at("window"));
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::int64_t window = config.window_of(layer);
    EXPECT_EQ(window != 0 ? std::min(window, kLong) : kLong,
              golden.at("attended").at(static_cast<std::size_t>(layer)))
        << layer;
  }
}

TEST(ConfigGolden, KeysMeanWhatTheyMeanToTransformers) {
  for (const auto& [name, values] : golden_cases().items()) {
    SCOPED_TRACE(name);
    if (name == kOfVersion4) continue;
    if (values.contains("refused") || is_refused_here(name)) {
      EXPECT_THROW(read_config(values.at("config")), Error);
      continue;
    }
    try {
      expect_same(read_config(values.at("config")), values);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

/// What is written for a model is read as the same model.
TEST(ConfigGolden, FoldersAreReadAsTheyAreWritten) {
  for (const auto& [name, values] : golden_cases().items()) {
    if (is_refused_here(name) || (values.contains("refused") && name != kOfVersion4)) continue;
    SCOPED_TRACE(name);
    GptConfig config = read_config(values.at("config"));
    config.norm_epsilon = 1.2345679e-06F;
    if (config.family == GptFamily::kGpt2) config.norm_epsilon = GptConfig{}.norm_epsilon;
    TemporaryFolder folder;
    PretrainedWriter writer = write_hugging_face(folder.path("model"), config);
    EXPECT_EQ(hugging_face_config_of(folder.path("model.tmp")), config);
    EXPECT_EQ(parse_gpt_configuration(configuration_of(config)), config);
  }
}

TEST(ConfigGolden, WhatIsNotComputedIsRefusedByName) {
  const auto error_of = [](const json& config) -> std::string {
    try {
      read_config(config);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of(with_keys("llama_plain", {{"per_layer_config", {{"0", json::object()}}}})),
              HasSubstr("per_layer_config"));
  EXPECT_THAT(error_of(with_keys("qwen3_share_and_longrope")),
              HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(error_of(with_keys("llama_proportional")),
              HasSubstr("rope_scaling.rope_type is \"proportional\", and only default, linear"));
  EXPECT_THAT(error_of(with_keys("llama_no_factor")), HasSubstr("rope_scaling.factor is absent"));
  EXPECT_THAT(error_of(with_keys("gemma2_activation")), HasSubstr("hidden_activation is \"gelu\""));
  EXPECT_THAT(error_of(with_keys("gemma3_text_both_ways")),
              HasSubstr("use_bidirectional_attention is true"));
  EXPECT_THAT(error_of(with_keys("gemma2_nested")), HasSubstr("rope_parameters.full_attention is"));
  EXPECT_THAT(error_of(with_keys("gemma3_text_nested", {{"rope_scaling", {{"factor", 2.0}}}})),
              HasSubstr("rope_scaling is"));
  EXPECT_THAT(error_of(with_keys("qwen2_types_without_use")), HasSubstr("layer_types is"));
  EXPECT_THAT(error_of(with_keys("qwen2_windows_from_1", {{"max_window_layers", -1}})),
              HasSubstr("max_window_layers is -1, and must be an integer from 0"));
}

TEST(ConfigGolden, WhatTransformersDoesNotHaveIsNotWritten) {
  const auto expect_refused = [](const std::string& name, const auto& change) {
    GptConfig config = read_config(with_keys(name));
    change(config);
    TemporaryFolder folder;
    EXPECT_THROW(write_hugging_face(folder.path("model"), config), Error) << name;
  };
  expect_refused("llama_plain", [](GptConfig& config) { config.rotary.share = 0.5; });
  expect_refused("llama_plain", [](GptConfig& config) { config.window = 5; });
  expect_refused("phi3_window", [](GptConfig& config) { config.first_window_layer = 1; });
  expect_refused("phi3_window", [](GptConfig& config) { config.window_period = 2; });
  expect_refused("phi3_plain",
                 [](GptConfig& config) { config.rotary.scaling = RotaryConfig::Scaling::kLinear; });
  expect_refused("llama_plain", [](GptConfig& config) { config.logit_cap = 5.0; });
  expect_refused("llama_plain", [](GptConfig& config) { config.attention_scalar = 5.0; });
  expect_refused("gemma3_text_plain", [](GptConfig& config) { config.attention_cap = 5.0; });
  expect_refused("gemma2_plain", [](GptConfig& config) { config.window_rotary.emplace(); });
}

/// A source's config.json keeps what it says, but for what the model is otherwise.
TEST(ConfigGolden, TheFileOfASourceBecomesThatOfTheModel) {
  for (const std::string name : {"llama_plain", "llama_yarn_trained", "gemma2_scaling",
                                 "gemma3_text_nested", "gemma3_text_nested_yarn"}) {
    SCOPED_TRACE(name);
    const std::string source = with_keys(name, {{"a_note", "of the source"}}).dump();
    GptConfig config = read_config(with_keys(name));
    config.layers = 4;
    TemporaryFolder folder;
    PretrainedWriter writer = write_hugging_face(folder.path("model"), config, disk(),
                                                 {.files = {{"config.json", source}}});
    EXPECT_EQ(hugging_face_config_of(folder.path("model.tmp")), config);
    const json written = json::parse(std::ifstream(folder.path("model.tmp/config.json")));
    EXPECT_EQ(written.at("a_note"), "of the source");
  }
}

/// What they are for a length must not change.
TEST(ConfigGolden, DynamicFrequenciesAreWrittenForTheContextThatTheyBeginBehind) {
  GptConfig config = read_config(with_keys("llama_dynamic"));
  const std::int64_t trained = config.context_length;
  config.context_length *= 2;
  TemporaryFolder folder;
  PretrainedWriter writer = write_hugging_face(folder.path("model"), config);
  const GptConfig again = hugging_face_config_of(folder.path("model.tmp"));
  EXPECT_EQ(again.rotary, config.rotary);
  EXPECT_EQ(again.context_length, trained);
}

}  // namespace
}  // namespace tessera::config_golden_test
