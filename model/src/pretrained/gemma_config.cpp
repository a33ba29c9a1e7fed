#include "pretrained/gemma_config.h"

#include <cmath>
#include <utility>
#include <vector>

#include "pretrained/hugging_face_config.h"
#include "pretrained/llama_config.h"
#include "pretrained/rotary_config.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;

/// Keys that change what is computed, and the values that mean what is computed here.
const std::vector<std::pair<const char*, std::vector<json>>> kFixedOfGemma{
    {"hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}},
    {"attention_bias", {false}},
    {"use_bidirectional_attention", {nullptr, false}},
    {"is_encoder_decoder", {false}},
    {"add_cross_attention", {false}}};

/// A soft cap; null means none.
double read_cap(const ConfigReader& reader, const char* key, double fallback) {
  if (!reader.has(key)) return fallback;
  return reader.is_set(key) ? reader.number(key) : 0.0;
}

/// Without `layer_types`, each second layer attends to all, in Gemma 3 each sixth.
void read_windows(const ConfigReader& reader, GptConfig& config) {
  constexpr std::int64_t kWindow = 4096, kPeriod2 = 2, kPeriod3 = 6;
  config.window = reader.has("sliding_window") ? reader.optional_size("sliding_window") : kWindow;
  if (reader.is_set("layer_types")) return read_layer_types(reader, config);
  const std::int64_t period = config.family == GptFamily::kGemma2
                                  ? kPeriod2
                                  : reader.size("sliding_window_pattern", kPeriod3);
  if (period == 1) {
    config.window = 0;
  } else if (config.window == 0) {
    reader.refuse("sliding_window", "must be the window of the layers that have one");
  } else if (period <= config.layers) {
    config.window_period = period;
  }
}

/// A number as an integer where it is one: the classes take no other for some keys.
json shortest(double value) {
  return value == std::floor(value) ? json(static_cast<std::int64_t>(value)) : json(value);
}

json cap_json(double cap) { return cap == 0.0 ? json() : json(cap); }

}  // namespace

GptConfig read_gemma_config(const ConfigReader& reader, const FamilyRow& family) {
  const bool gemma3 = family.family == GptFamily::kGemma3;
  GptConfig config{.vocab_size = reader.size("vocab_size"),
                   .context_length = reader.size("max_position_embeddings"),
                   .layers = reader.size("num_hidden_layers"),
                   .heads = reader.size("num_attention_heads"),
                   .width = reader.size("hidden_size"),
                   .tie_embedding = reader.flag("tie_word_embeddings", true),
                   .family = family.family,
                   .kv_heads = reader.size("num_key_value_heads", 4),
                   .head_width = reader.size("head_dim", 256),
                   .mlp_width = reader.size("intermediate_size"),
                   .norm_epsilon = static_cast<float>(reader.number("rms_norm_eps", 1e-6))};
  for (const auto& [key, values] : kFixedOfGemma) reader.require_value(key, values);
  if (config.width % config.heads != 0) {
    reader.refuse("hidden_size", "must be a multiple of num_attention_heads");
  }
  const double scalar = reader.number("query_pre_attn_scalar", 256.0);
  if (scalar != static_cast<double>(config.head_width)) config.attention_scalar = scalar;
  // The class of Gemma 3 has attn_logit_softcapping, and does not use it.
  config.attention_cap = gemma3 ? 0.0 : read_cap(reader, "attn_logit_softcapping", 50.0);
  config.logit_cap = read_cap(reader, "final_logit_softcapping", gemma3 ? 0.0 : 30.0);
  read_windows(reader, config);
  if (!gemma3) {
    config.rotary = read_rotary(reader, family);
    return config;
  }
  RotaryPair rotary = read_rotary_pair(reader, family);
  config.rotary = std::move(rotary.full);
  if (rotary.windowed != config.rotary) config.window_rotary = std::move(rotary.windowed);
  return config;
}

nlohmann::ordered_json gemma_config_json(const GptConfig& config) {
  const FamilyRow& family = family_of(config);
  const bool gemma3 = family.family == GptFamily::kGemma3;
  const double scalar = config.attention_scalar == 0.0
                            ? static_cast<double>(config.head_width_used())
                            : config.attention_scalar;
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
                              {"hidden_activation", "gelu_pytorch_tanh"},
                              {"rms_norm_eps", with_fewest_digits(config.norm_epsilon)},
                              {"query_pre_attn_scalar", shortest(scalar)},
                              {"attn_logit_softcapping", cap_json(config.attention_cap)},
                              {"final_logit_softcapping", cap_json(config.logit_cap)},
                              {"initializer_range", 0.02},
                              {"attention_bias", false},
                              {"attention_dropout", 0.0},
                              {"tie_word_embeddings", config.tie_embedding},
                              {"use_cache", true},
                              {"dtype", "float32"},
                              {"pad_token_id", nullptr}};
  file["sliding_window"] = config.window == 0 ? json() : json(config.window);
  file["layer_types"] = layer_types_json(config);
  const RotaryConfig windowed = config.window_rotary.value_or(config.rotary);
  if (gemma3 && windowed.scaling != RotaryConfig::Scaling::kNone) {
    file["rope_parameters"] = {{"full_attention", rope_parameters_json(config.rotary)},
                               {"sliding_attention", rope_parameters_json(windowed)}};
    return file;
  }
  file["rope_theta"] = config.rotary.base;
  if (gemma3) file["rope_local_base_freq"] = windowed.base;
  if (config.rotary.scaling == RotaryConfig::Scaling::kLongRope) {
    file["original_max_position_embeddings"] = config.rotary.trained_context;
  }
  file["rope_scaling"] = rope_scaling_json(config.rotary);
  return file;
}

}  // namespace tessera::pretrained
