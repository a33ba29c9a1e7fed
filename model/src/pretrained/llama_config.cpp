#include "pretrained/llama_config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "pretrained/gemma_config.h"
#include "pretrained/hugging_face_config.h"
#include "pretrained/rotary_config.h"
#include "tessera/core/error.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;
using Scaling = RotaryConfig::Scaling;

constexpr const char *kFull = "full_attention", *kWindowed = "sliding_attention";

/// Keys that change what is computed, and the values that mean what is computed here.
const std::vector<std::pair<const char*, std::vector<json>>> kFixed{
    {"hidden_act", {"silu"}},        {"attention_bias", {false}},      {"mlp_bias", {false}},
    {"is_encoder_decoder", {false}}, {"add_cross_attention", {false}}, {"pretraining_tp", {1}}};

}  // namespace

/// Windows begin at a layer and go on to the last, or the last of so many layers in a row has none.
void read_layer_types(const ConfigReader& reader, GptConfig& config) {
  const json types = reader.value("layer_types", nullptr);
  const auto windowed = [](const json& type) { return type == kWindowed; };
  const auto known = [&](const json& type) { return windowed(type) || type == kFull; };
  if (!types.is_array() || std::ssize(types) != config.layers ||
      !std::ranges::all_of(types, known)) {
    reader.refuse("layer_types",
                  "must have \"full_attention\" or \"sliding_attention\" for each "
                  "layer");
  }
  const auto first = std::ranges::find_if(types, windowed);
  if (first == types.end()) {
    config.window = 0;
    return;
  }
  if (config.window == 0) {
    reader.refuse("layer_types",
                  "sliding_window and use_sliding_window give those layers no window");
  }
  if (std::all_of(first, types.end(), windowed)) {
    config.first_window_layer = first - types.begin();
    return;
  }
  config.window_period = std::ranges::find(types, json(kFull)) - types.begin() + 1;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (windowed(types[static_cast<std::size_t>(layer)]) == (config.window_of(layer) != 0))
      continue;
    reader.refuse("layer_types",
                  "only windows from one layer on to the last, or in all layers but each n-th, are "
                  "computed here");
  }
}

json layer_types_json(const GptConfig& config) {
  json types = json::array();
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    types.push_back(config.window_of(layer) == 0 ? kFull : kWindowed);
  }
  return types;
}

namespace {

/// A Mistral with layer_types is what transformers reads as a Ministral.
void read_window(const ConfigReader& reader, const FamilyRow& family, GptConfig& config) {
  constexpr std::int64_t kDefaultWindow = 4096, kDefaultFirstLayer = 28;  // of the classes
  const bool qwen = family.family == GptFamily::kQwen2 || family.family == GptFamily::kQwen3;
  if (family.family == GptFamily::kLlama) return;
  if (!qwen || reader.flag("use_sliding_window", false)) {
    const bool has_default = family.family != GptFamily::kPhi3;
    config.window = has_default && !reader.has("sliding_window")
                        ? kDefaultWindow
                        : reader.optional_size("sliding_window");
  }
  if (family.family == GptFamily::kPhi3) return;  // its class does not read layer_types
  if (reader.is_set("layer_types")) {
    read_layer_types(reader, config);
  } else if (qwen && config.window != 0) {
    config.first_window_layer = reader.count("max_window_layers", kDefaultFirstLayer);
  }
}

/// Null means as many as there are heads, but not to Mistral's class.
std::int64_t read_kv_heads(const ConfigReader& reader, const GptConfig& config) {
  constexpr const char* kKey = "num_key_value_heads";
  constexpr std::int64_t kMistral = 8, kQwen = 32;
  if (config.family == GptFamily::kMistral) return reader.size(kKey, kMistral);
  if (reader.has(kKey)) return reader.is_set(kKey) ? reader.size(kKey) : config.heads;
  const bool qwen = config.family == GptFamily::kQwen2 || config.family == GptFamily::kQwen3;
  return qwen ? kQwen : config.heads;
}

std::int64_t read_head_width(const ConfigReader& reader, const GptConfig& config) {
  constexpr std::int64_t kQwen3 = 128;
  if (config.family == GptFamily::kQwen3) return reader.size("head_dim", kQwen3);
  if (reader.is_set("head_dim")) return reader.size("head_dim");
  if (config.width % config.heads != 0) {
    reader.refuse("hidden_size", "must be a multiple of num_attention_heads, or head_dim given");
  }
  return config.width / config.heads;
}

bool is_gemma(const GptConfig& config) { return family_of(config).post_norms; }

/// Refuses what transformers' class of the family does not have.
void require_written(const GptConfig& config) {
  const FamilyRow& family = family_of(config);
  const bool phi3 = config.family == GptFamily::kPhi3;
  const auto refuse = [&](const char* what) {
    fail(ErrorCode::kConfig, "transformers' ", family.architecture, " has no ", what,
         ", so this model cannot be written as a Hugging Face folder");
  };
  const bool gemma = is_gemma(config);
  if (config.rotary.share != 1.0 && !phi3) refuse("partial rotation");
  if (phi3 && config.rotary.scaling != Scaling::kNone &&
      config.rotary.scaling != Scaling::kLongRope) {
    refuse("scaling of rotary frequencies but by longrope");
  }
  if (config.window_rotary && config.family != GptFamily::kGemma3) {
    refuse("rotary frequencies of their own in layers with a window");
  }
  if (config.attention_cap != 0.0 && config.family != GptFamily::kGemma2) {
    refuse("soft cap of attention's scores");
  }
  if (config.logit_cap != 0.0 && !gemma) refuse("soft cap of logits");
  if (config.attention_scalar != 0.0 && !gemma) refuse("scale of attention's scores");
  if (config.window != 0 && config.family == GptFamily::kLlama) refuse("windows");
  if (config.window != 0 && config.first_window_layer != 0 && phi3) {
    refuse("layers without a window before those with one");
  }
  if (config.window != 0 && config.window_period != 0 && phi3) {
    refuse("layers without a window between those with one");
  }
}

}  // namespace

std::int64_t written_context(const GptConfig& config) {
  const RotaryConfig& rotary = config.rotary;
  return rotary.scaling == Scaling::kDynamic ? rotary.trained_context : config.context_length;
}

GptConfig read_llama_config(const ConfigReader& reader, const FamilyRow& family) {
  if (family.post_norms) return read_gemma_config(reader, family);
  const double epsilon = family.family == GptFamily::kPhi3 ? 1e-5 : 1e-6;
  GptConfig config{.vocab_size = reader.size("vocab_size"),
                   .context_length = reader.size("max_position_embeddings"),
                   .layers = reader.size("num_hidden_layers"),
                   .heads = reader.size("num_attention_heads"),
                   .width = reader.size("hidden_size"),
                   .tie_embedding = reader.flag("tie_word_embeddings", false),
                   .family = family.family,
                   .mlp_width = reader.size("intermediate_size"),
                   .norm_epsilon = static_cast<float>(reader.number("rms_norm_eps", epsilon)),
                   .rotary = read_rotary(reader, family)};
  for (const auto& [key, values] : kFixed) reader.require_value(key, values);
  config.kv_heads = read_kv_heads(reader, config);
  config.head_width = read_head_width(reader, config);
  read_window(reader, family, config);
  return config;
}

nlohmann::ordered_json llama_config_json(const GptConfig& config) {
  require_written(config);
  if (is_gemma(config)) return gemma_config_json(config);
  const FamilyRow& family = family_of(config);
  const RotaryConfig& rotary = config.rotary;
  const double dropout = with_fewest_digits(config.dropout);
  nlohmann::ordered_json file{{"architectures", {std::string(family.architecture)}},
                              {"model_type", std::string(family.name)},
                              {"vocab_size", config.vocab_size},
                              {"max_position_embeddings", written_context(config)},
                              {"hidden_size", config.width},
                              {"intermediate_size", config.mlp_width_used()},
                              {"num_hidden_layers", config.layers},
                              {"num_attention_heads", config.heads},
                              {"num_key_value_heads", config.kv_heads_used()},
                              {"head_dim", config.head_width_used()},
                              {"hidden_act", "silu"},
                              {"rms_norm_eps", with_fewest_digits(config.norm_epsilon)},
                              {"initializer_range", 0.02},
                              {"attention_dropout", 0.0},
                              {"tie_word_embeddings", config.tie_embedding},
                              {"rope_theta", rotary.base},
                              {"use_cache", true},
                              {"dtype", "float32"}};
  if (rotary.share != 1.0) file["partial_rotary_factor"] = rotary.share;
  if (family.family == GptFamily::kPhi3) {
    file["resid_pdrop"] = dropout;
    file["embd_pdrop"] = dropout;
    file["pad_token_id"] = nullptr;  // its class has one beyond small vocabularies
  }
  if (family.family == GptFamily::kLlama || family.family == GptFamily::kQwen3)
    file["attention_bias"] = false;
  if (family.family != GptFamily::kLlama) {
    file["sliding_window"] = config.window == 0 ? json() : json(config.window);
  }
  if (family.family == GptFamily::kQwen2 || family.family == GptFamily::kQwen3) {
    file["use_sliding_window"] = config.window != 0;
    file["max_window_layers"] = config.window == 0 ? config.layers : config.first_window_layer;
  }
  const bool mistral = family.family == GptFamily::kMistral && config.first_window_layer > 0;
  if (config.window != 0 && (mistral || config.window_period != 0)) {
    file["layer_types"] = layer_types_json(config);
  }
  if (rotary.scaling == Scaling::kLongRope) {
    file["original_max_position_embeddings"] = rotary.trained_context;
  }
  file["rope_scaling"] = rope_scaling_json(rotary);
  return file;
}

}  // namespace tessera::pretrained
