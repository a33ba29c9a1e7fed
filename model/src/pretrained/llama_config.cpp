#include "pretrained/llama_config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/core/error.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;
using Scaling = RotaryConfig::Scaling;

/// Keys that change what is computed, and the values that mean what is computed here.
const std::vector<std::pair<const char*, std::vector<json>>> kFixed{
    {"hidden_act", {"silu"}},        {"attention_bias", {false}},      {"mlp_bias", {false}},
    {"is_encoder_decoder", {false}}, {"add_cross_attention", {false}}, {"pretraining_tp", {1}}};

void read_llama3(const ConfigReader& rope, const ConfigReader& all, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kLlama3;
  rotary.factor = rope.number("factor");
  rotary.low_frequency = rope.number("low_freq_factor");
  rotary.high_frequency = rope.number("high_freq_factor");
  const ConfigReader& holder = rope.has("original_max_position_embeddings") ? rope : all;
  rotary.trained_context = holder.size("original_max_position_embeddings");
}

void read_longrope(const ConfigReader& rope, const ConfigReader& all, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kLongRope;
  rotary.short_factors = rope.numbers("short_factor");
  rotary.long_factors = rope.numbers("long_factor");
  const ConfigReader& holder = all.has("original_max_position_embeddings") ? all : rope;
  rotary.trained_context = holder.size("original_max_position_embeddings");
}

/// `rope_parameters` (5), or `rope_scaling` beside `rope_theta` (4).
RotaryConfig read_rotary(const ConfigReader& reader) {
  RotaryConfig rotary;
  rotary.base = reader.number("rope_theta", rotary.base);
  rotary.share = reader.number("partial_rotary_factor", rotary.share);
  const char* const key = reader.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (reader.value(key, nullptr).is_null()) return rotary;
  const ConfigReader rope(reader, key);
  rotary.base = rope.number("rope_theta", rotary.base);
  rotary.share = rope.number("partial_rotary_factor", rotary.share);
  rope.require_known({"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor",
                      "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
                      "short_factor", "long_factor"});
  const char* const type_key = rope.has("rope_type") ? "rope_type" : "type";
  const json type = rope.value(type_key, "default");
  const bool factors = rope.has("short_factor");
  if (type == "llama3") {
    read_llama3(rope, reader, rotary);
  } else if (type == "longrope" || (factors && (type == "su" || type == "yarn"))) {
    read_longrope(rope, reader, rotary);
  } else if (type != "default") {
    rope.refuse(type_key, "only default, llama3 and longrope are computed here");
  }
  return rotary;
}

/// Windows begin at a layer and go on to the last.
void read_layer_types(const ConfigReader& reader, GptConfig& config) {
  const json types = reader.value("layer_types", nullptr);
  const auto windowed = [](const json& type) { return type == "sliding_attention"; };
  const auto known = [&](const json& type) { return windowed(type) || type == "full_attention"; };
  if (!types.is_array() || std::ssize(types) != config.layers ||
      !std::ranges::all_of(types, known)) {
    reader.refuse("layer_types",
                  "must have \"full_attention\" or \"sliding_attention\" for each "
                  "layer");
  }
  const auto first = std::ranges::find_if(types, windowed);
  if (!std::all_of(first, types.end(), windowed)) {
    reader.refuse("layer_types", "only windows from one layer on to the last are computed here");
  }
  config.first_window_layer = first - types.begin();
  if (first == types.end()) {
    config.window = 0;
    config.first_window_layer = 0;
  }
}

void read_window(const ConfigReader& reader, const FamilyRow& family, GptConfig& config) {
  const bool qwen = family.family == GptFamily::kQwen2 || family.family == GptFamily::kQwen3;
  if (family.family == GptFamily::kLlama) return;
  if (qwen && !reader.flag("use_sliding_window", false)) return;
  constexpr std::int64_t kMistralWindow = 4096;  // MistralConfig's default
  config.window = family.family == GptFamily::kMistral && !reader.has("sliding_window")
                      ? kMistralWindow
                      : reader.optional_size("sliding_window");
  if (config.window == 0) return;
  if (reader.has("layer_types") && !reader.value("layer_types", nullptr).is_null()) {
    read_layer_types(reader, config);
  } else if (qwen) {
    config.first_window_layer = reader.optional_size("max_window_layers");
  }
}

}  // namespace

GptConfig read_llama_config(const ConfigReader& reader, const FamilyRow& family) {
  GptConfig config{.vocab_size = reader.size("vocab_size"),
                   .context_length = reader.size("max_position_embeddings"),
                   .layers = reader.size("num_hidden_layers"),
                   .heads = reader.size("num_attention_heads"),
                   .width = reader.size("hidden_size"),
                   .tie_embedding = reader.flag("tie_word_embeddings", false),
                   .family = family.family,
                   .kv_heads = reader.optional_size("num_key_value_heads"),
                   .head_width = reader.optional_size("head_dim"),
                   .mlp_width = reader.size("intermediate_size"),
                   .norm_epsilon = static_cast<float>(reader.number("rms_norm_eps")),
                   .rotary = read_rotary(reader)};
  for (const auto& [key, values] : kFixed) reader.require_value(key, values);
  const bool own_default = family.family != GptFamily::kLlama && family.family != GptFamily::kPhi3;
  if (config.kv_heads == 0) {
    if (own_default) reader.refuse("num_key_value_heads", "must be given for this model_type");
    config.kv_heads = config.heads;
  }
  if (config.head_width == 0) {
    const bool qwen3 = family.family == GptFamily::kQwen3;
    if (qwen3) reader.refuse("head_dim", "must be given for this model_type");
    if (config.width % config.heads != 0) {
      reader.refuse("hidden_size", "must be a multiple of num_attention_heads, or head_dim given");
    }
    config.head_width = config.width / config.heads;
  }
  read_window(reader, family, config);
  return config;
}

nlohmann::ordered_json llama_config_json(const GptConfig& config) {
  const FamilyRow& family = family_of(config);
  const RotaryConfig& rotary = config.rotary;
  const double dropout = config.dropout;
  nlohmann::ordered_json file{{"architectures", {std::string(family.architecture)}},
                              {"model_type", std::string(family.name)},
                              {"vocab_size", config.vocab_size},
                              {"max_position_embeddings", config.context_length},
                              {"hidden_size", config.width},
                              {"intermediate_size", config.mlp_width_used()},
                              {"num_hidden_layers", config.layers},
                              {"num_attention_heads", config.heads},
                              {"num_key_value_heads", config.kv_heads_used()},
                              {"head_dim", config.head_width_used()},
                              {"hidden_act", "silu"},
                              {"rms_norm_eps", std::stod(concat(config.norm_epsilon))},
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
  if (rotary.scaling == Scaling::kLlama3) {
    file["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", rotary.factor},
                            {"low_freq_factor", rotary.low_frequency},
                            {"high_freq_factor", rotary.high_frequency},
                            {"original_max_position_embeddings", rotary.trained_context}};
  } else if (rotary.scaling == Scaling::kLongRope) {
    file["original_max_position_embeddings"] = rotary.trained_context;
    // Version 4 wants these three keys, version 5 takes them, too.
    file["rope_scaling"] = {{"type", "longrope"},
                            {"short_factor", rotary.short_factors},
                            {"long_factor", rotary.long_factors}};
  } else {
    file["rope_scaling"] = nullptr;
  }
  return file;
}

}  // namespace tessera::pretrained
