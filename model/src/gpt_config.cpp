#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "gpt_config.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

struct Preset {
  std::string_view name;
  std::string_view hugging_face;  ///< what it is called there; empty if it is ours alone
  GptConfig config;
};

constexpr std::string_view kFamily = "gpt2";

/// The numbers of a configuration, by name: one table for both ways.
constexpr std::array<std::pair<std::string_view, std::int64_t GptConfig::*>, 5> kSizes{{
    {"vocab_size", &GptConfig::vocab_size},
    {"context_length", &GptConfig::context_length},
    {"layers", &GptConfig::layers},
    {"heads", &GptConfig::heads},
    {"width", &GptConfig::width},
}};

constexpr GptConfig gpt2(std::int64_t layers, std::int64_t heads, std::int64_t width) {
  return {.vocab_size = 50257,
          .context_length = 1024,
          .layers = layers,
          .heads = heads,
          .width = width};
}

constexpr std::array kPresets{
    Preset{"gpt2-tiny", "", GptConfig{}},
    Preset{"gpt2-124m", "gpt2", gpt2(12, 12, 768)},
    Preset{"gpt2-350m", "gpt2-medium", gpt2(24, 16, 1024)},
    Preset{"gpt2-774m", "gpt2-large", gpt2(36, 20, 1280)},
    Preset{"gpt2-1558m", "gpt2-xl", gpt2(48, 25, 1600)},
};

/// Null if there is none of that name.
const Preset* find_preset(std::string_view name) {
  constexpr std::string_view kOwner = "openai-community/";
  const bool theirs = name.starts_with(kOwner);
  if (theirs) name.remove_prefix(kOwner.size());
  for (const Preset& preset : kPresets) {
    const bool known = name == preset.hugging_face || (!theirs && name == preset.name);
    if (known && !name.empty()) return &preset;
  }
  return nullptr;
}

}  // namespace

GptConfig gpt_preset(std::string_view name) {
  if (const Preset* preset = find_preset(name)) return preset->config;
  std::string choices;
  for (const std::string& choice : gpt_preset_names()) {
    choices += (choices.empty() ? "" : ", ") + choice;
  }
  fail(ErrorCode::kConfig, "there is no model '", name, "'; choose one of ", choices);
}

std::string gpt_preset_name(std::string_view name) {
  const Preset* preset = find_preset(name);
  return preset == nullptr ? "" : std::string(preset->name);
}

std::vector<std::string> gpt_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
    if (!preset.hugging_face.empty()) names.emplace_back(preset.hugging_face);
  }
  return names;
}

double gpt_flops_per_token(const GptConfig& config) {
  const auto layers = static_cast<double>(config.layers);
  const auto width = static_cast<double>(config.width);
  const double block_matrices = 12.0 * width * width;  // 3 + 1 in attention, 4 + 4 in the MLP
  const double head_matrix = static_cast<double>(config.vocab_size) * width;
  const double attention = layers * static_cast<double>(config.context_length) * width;
  return 6.0 * (layers * block_matrices + head_matrix + attention);
}

void check(const GptConfig& config) {
  const auto positive = [](const char* what, std::int64_t value) {
    require(value > 0, ErrorCode::kConfig, "model: ", what, " must be positive, got ", value);
  };
  positive("vocab_size", config.vocab_size);
  positive("context_length", config.context_length);
  positive("layers", config.layers);
  positive("heads", config.heads);
  positive("width", config.width);
  require(config.width % config.heads == 0, ErrorCode::kConfig, "model: width ", config.width,
          " is not a multiple of heads ", config.heads, "; change one of them");
  require(config.dropout >= 0.0F && config.dropout < 1.0F, ErrorCode::kConfig,
          "model: dropout must be in [0, 1), got ", config.dropout);
}

std::vector<NamedText> configuration_of(const GptConfig& config) {
  std::vector<NamedText> words{{"family", std::string(kFamily)}};
  for (const auto& [name, size] : kSizes)
    words.push_back({std::string(name), concat(config.*size)});
  words.push_back({"dropout", concat(config.dropout)});
  words.push_back({"tie_embedding", config.tie_embedding ? "true" : "false"});
  return words;
}

GptConfig parse_gpt_configuration(const std::vector<NamedText>& words) {
  const auto value_of = [&](std::string_view name) -> const std::string& {
    const auto found = std::ranges::find(words, name, &NamedText::name);
    require(found != words.end(), ErrorCode::kConfig, "the model's configuration has no '", name,
            "'");
    return found->value;
  };
  const auto number = [&](std::string_view name, auto value) {
    const std::string& text = value_of(name);
    std::istringstream in(text);
    require(static_cast<bool>(in >> value) && in.eof(), ErrorCode::kConfig, name, " '", text,
            "' of the model's configuration is no number");
    return value;
  };
  require(value_of("family") == kFamily, ErrorCode::kConfig, "the model is of the family '",
          value_of("family"), "', and '", kFamily, "' is what is known here");
  GptConfig config;
  for (const auto& [name, size] : kSizes) config.*size = number(name, config.*size);
  config.dropout = number("dropout", config.dropout);
  config.tie_embedding = value_of("tie_embedding") == "true";
  return config;
}

}  // namespace tessera
