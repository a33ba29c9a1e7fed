#include "pretrained/llama_config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "pretrained/hugging_face_config.h"
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

/// The context before scaling. The classes of transformers take what stands outside of the
/// scaling's object (4 did so for longrope only); Phi-3's has a default for it.
std::int64_t read_trained_context(const ConfigReader& rope, const ConfigReader& all,
                                  const FamilyRow& family) {
  constexpr const char* kKey = "original_max_position_embeddings";
  constexpr std::int64_t kPhi3 = 4096;
  if (all.has(kKey)) return all.size(kKey);
  if (family.family == GptFamily::kPhi3) return kPhi3;
  return rope.has(kKey) ? rope.size(kKey) : all.size("max_position_embeddings");
}

void read_llama3(const ConfigReader& rope, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kLlama3;
  rotary.factor = rope.number("factor");
  rotary.low_frequency = rope.number("low_freq_factor");
  rotary.high_frequency = rope.number("high_freq_factor");
}

/// `factor` counts as in version 5, where 4 took the ratio of the contexts if it knew both.
void read_longrope(const ConfigReader& rope, RotaryConfig& rotary) {
  rotary.scaling = Scaling::kLongRope;
  rotary.short_factors = rope.numbers("short_factor");
  rotary.long_factors = rope.numbers("long_factor");
  if (rope.is_set("attention_factor")) {
    rotary.amplitude = rope.number("attention_factor");
  } else if (rope.is_set("factor")) {
    rotary.amplitude = longrope_amplitude(rope.number("factor"), rotary.trained_context);
  }
}

void read_scaling(const ConfigReader& rope, const ConfigReader& all, const FamilyRow& family,
                  RotaryConfig& rotary) {
  const char* const type_key = rope.has("rope_type") ? "rope_type" : "type";
  const json type = rope.value(type_key, "default");
  if (type == "default") return;
  const bool phi3 = family.family == GptFamily::kPhi3;
  const bool old_longrope =
      phi3 && (type == "su" || type == "yarn");  // names of Phi-3's first files
  rotary.trained_context = read_trained_context(rope, all, family);
  if (type == "llama3" && !phi3) {
    read_llama3(rope, rotary);
  } else if (type == "longrope" || old_longrope) {
    read_longrope(rope, rotary);
  } else {
    rope.refuse(type_key, phi3 ? "only default and longrope are Phi-3's"
                               : "only default, llama3 and longrope are computed here");
  }
}

/// `rope_parameters` (5), or `rope_scaling` beside `rope_theta` (4). As in version 5,
/// `rope_scaling` counts where both are there, and what the object does not have is looked up
/// beside it.
RotaryConfig read_rotary(const ConfigReader& reader, const FamilyRow& family) {
  constexpr const char* kShare = "partial_rotary_factor";
  const bool old_key = reader.is_set("rope_scaling") && !reader.value("rope_scaling", {}).empty();
  const char* const key = old_key ? "rope_scaling" : "rope_parameters";
  const bool is_set = reader.is_set(key);
  const ConfigReader rope = is_set ? ConfigReader(reader, key) : reader;
  const auto holder = [&](const char* name) { return rope.has(name) ? rope : reader; };
  RotaryConfig rotary;
  rotary.base = holder("rope_theta").number("rope_theta", rotary.base);
  if (is_set) {
    rope.require_known({"rope_type", "type", "rope_theta", kShare, "factor", "low_freq_factor",
                        "high_freq_factor", "original_max_position_embeddings", "short_factor",
                        "long_factor", "attention_factor"});
    read_scaling(rope, reader, family, rotary);
  }
  const double share = holder(kShare).number(kShare, rotary.share);
  if (family.family == GptFamily::kPhi3) {
    rotary.share = share;
  } else if (rotary.scaling != Scaling::kNone && share != 1.0) {
    holder(kShare).refuse(kShare, "beside scaled frequencies must be 1 for this model_type");
  }  // Without scaling, version 5 rotates all channels of the other families; 4 fails.
  return rotary;
}

/// Windows begin at a layer and go on to the last.
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
  if (!std::all_of(first, types.end(), windowed)) {
    reader.refuse("layer_types", "only windows from one layer on to the last are computed here");
  }
  if (first == types.end()) {
    config.window = 0;
  } else if (config.window == 0) {
    reader.refuse("layer_types",
                  "sliding_window and use_sliding_window give those layers no window");
  } else {
    config.first_window_layer = first - types.begin();
  }
}

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

/// Refuses what transformers' class of the family does not have.
void require_written(const GptConfig& config) {
  const FamilyRow& family = family_of(config);
  const bool phi3 = config.family == GptFamily::kPhi3;
  const auto refuse = [&](const char* what) {
    fail(ErrorCode::kConfig, "transformers' ", family.architecture, " has no ", what,
         ", so this model cannot be written as a Hugging Face folder");
  };
  if (config.rotary.share != 1.0 && !phi3) refuse("partial rotation");
  if (config.rotary.scaling == Scaling::kLlama3 && phi3) refuse("llama3 scaling");
  if (config.window != 0 && config.family == GptFamily::kLlama) refuse("windows");
  if (config.window != 0 && config.first_window_layer != 0 && phi3) {
    refuse("layers without a window before those with one");
  }
}

}  // namespace

GptConfig read_llama_config(const ConfigReader& reader, const FamilyRow& family) {
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
  const FamilyRow& family = family_of(config);
  const RotaryConfig& rotary = config.rotary;
  const double dropout = with_fewest_digits(config.dropout);
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
  if (family.family == GptFamily::kMistral && config.window != 0 && config.first_window_layer > 0) {
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      file["layer_types"].push_back(layer < config.first_window_layer ? kFull : kWindowed);
    }
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
    if (rotary.amplitude != 0.0) file["rope_scaling"]["attention_factor"] = rotary.amplitude;
  } else {
    file["rope_scaling"] = nullptr;
  }
  return file;
}

}  // namespace tessera::pretrained
