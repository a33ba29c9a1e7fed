#include "pretrained/hugging_face_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <vector>

#include "gpt_config.h"
#include "pretrained/bert_config.h"
#include "pretrained/config_reader.h"
#include "pretrained/llama_config.h"
#include "pretrained/quantization_config.h"
#include "pretrained/sequence_labels.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;

/// The class's default where the key is absent. Either name may be there; of both, transformers
/// takes the alias.
struct Size {
  const char* key;
  const char* alias;
  std::int64_t fallback;
  std::int64_t GptConfig::*member;
};
constexpr std::array kSizes{
    Size{"vocab_size", "vocab_size", 50257, &GptConfig::vocab_size},
    Size{"n_positions", "max_position_embeddings", 1024, &GptConfig::context_length},
    Size{"n_layer", "num_hidden_layers", 12, &GptConfig::layers},
    Size{"n_head", "num_attention_heads", 12, &GptConfig::heads},
    Size{"n_embd", "hidden_size", 768, &GptConfig::width},
};

/// A key that changes what is computed, and the values that mean what is computed here. Absent, it
/// means that, too.
struct Fixed {
  const char* key;
  std::vector<json> values;
};

std::vector<Fixed> fixed_keys(const GptConfig& config) {
  return {
      {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}},
      {"n_inner", {nullptr, 4 * config.width}},
      {"layer_norm_epsilon", {1e-5}},
      {"scale_attn_weights", {true}},
      {"scale_attn_by_inverse_layer_idx", {false}},
      {"reorder_and_upcast_attn", {false}},
      {"add_cross_attention", {false}},
      {"is_encoder_decoder", {false}},
      {"pruned_heads", {nullptr, json::object()}},
  };
}

GptConfig read_gpt2(const ConfigReader& reader) {
  GptConfig config;
  for (const Size& size : kSizes) {
    const char* const key = reader.has(size.alias) ? size.alias : size.key;
    config.*size.member = reader.size(key, size.fallback);
  }
  for (const auto& [key, values] : fixed_keys(config)) reader.require_value(key, values);
  config.tie_embedding = reader.flag("tie_word_embeddings", true);
  return config;
}

}  // namespace

namespace {

/// BERT's head for masked tokens with one that tells whether a sentence follows another, which is
/// left out.
constexpr const char* kPreTraining = "BertForPreTraining";

GptConfig read_config(const ConfigReader& reader, const std::string& path) {
  const json type = reader.value("model_type", nullptr);
  const auto families = gpt_families();
  const auto family = std::ranges::find_if(
      families, [&](const FamilyRow& row) { return type == std::string(row.name); });
  std::string known;
  for (const FamilyRow& row : families)
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  require(family != families.end(), ErrorCode::kConfig, "'", path, "': model_type is ", shown(type),
          "; what can be read is ", known);
  const json architectures = reader.value("architectures", nullptr);
  const auto is_known = [&](const json& name) {
    if (family->encoder && name == kPreTraining) return true;
    return name == std::string(family->architecture) || name == std::string(family->base_class) ||
           name == classifier_of(*family);
  };
  require(architectures.is_null() ||
              (architectures.is_array() && std::ranges::any_of(architectures, is_known)),
          ErrorCode::kConfig, "'", path, "': architectures is ", shown(architectures),
          "; of this model_type only ", family->architecture, " and ", classifier_of(*family),
          " can be read");
  read_quantization(reader);  // refuses what cannot be read
  reader.require_value("per_layer_config", {nullptr});
  GptConfig config = family->encoder                      ? read_bert_config(reader)
                     : family->family == GptFamily::kGpt2 ? read_gpt2(reader)
                                                          : read_llama_config(reader, *family);
  config.labels = read_labels(reader, *family);
  try {
    check(config);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, "'", path, "': ", error.what());
  }
  return config;
}

}  // namespace

GptConfig read_hugging_face_config(const std::string& path) {
  return read_config(ConfigReader(path), path);
}

GptConfig parse_hugging_face_config(std::string_view text, const std::string& path) {
  return read_config(ConfigReader(path, text), path);
}

std::vector<std::int32_t> end_tokens_in(const std::string& path) {
  constexpr const char* kKey = "eos_token_id";
  const ConfigReader reader(path);
  const json value = reader.value(kKey, nullptr);
  const json list = value.is_array() ? value : value.is_null() ? json::array() : json{value};
  std::vector<std::int32_t> tokens;
  for (const json& token : list) {
    if (!token.is_number_unsigned() ||
        token.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
      reader.refuse(kKey, "must be a token's id or a list of them");
    }
    tokens.push_back(token.get<std::int32_t>());
  }
  return tokens;
}

namespace {

nlohmann::ordered_json gpt2_config(const GptConfig& config) {
  const double dropout = with_fewest_digits(config.dropout);
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", config.vocab_size},
          {"n_positions", config.context_length},
          {"n_ctx", config.context_length},
          {"n_embd", config.width},
          {"n_layer", config.layers},
          {"n_head", config.heads},
          {"n_inner", nullptr},
          {"activation_function", "gelu_new"},
          {"resid_pdrop", dropout},
          {"embd_pdrop", dropout},
          {"attn_pdrop", 0.0},
          {"layer_norm_epsilon", 1e-5},
          {"initializer_range", 0.02},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false},
          {"tie_word_embeddings", config.tie_embedding},
          {"use_cache", true},
          {"dtype", "float32"}};
}

/// Keys of our own config.json that say nothing of what is computed: those of a source stay.
constexpr std::array kOnlyNew{"dtype",
                              "bos_token_id",
                              "eos_token_id",
                              "pad_token_id",
                              "resid_pdrop",
                              "embd_pdrop",
                              "attn_pdrop",
                              "use_cache",
                              "architectures",
                              "initializer_range",
                              "attention_dropout",
                              "hidden_dropout_prob",
                              "attention_probs_dropout_prob",
                              "classifier_dropout"};
constexpr const char* kQuantization = "quantization_config";

nlohmann::ordered_json own_config(const GptConfig& config) {
  if (is_encoder(config)) return bert_config_json(config);
  return config.family == GptFamily::kGpt2 ? gpt2_config(config) : llama_config_json(config);
}

/// Equal in all that a config.json says but the number of tokens. Layers that are too few for a
/// period have none.
bool is_same_model(const GptConfig& a, const GptConfig& b) {
  GptConfig same = a;
  const auto period = [](const GptConfig& c) {
    return c.window_period > c.layers ? 0 : c.window_period;
  };
  if (period(a) == period(b)) same.window_period = b.window_period;
  same.vocab_size = b.vocab_size;
  same.dropout = b.dropout;
  same.adapter = b.adapter;
  same.labels = b.labels;  // which have keys of their own
  same.base_format = b.base_format;
  same.unquantized = b.unquantized;
  return same == b;
}

}  // namespace

double with_fewest_digits(float value) {
  std::array<char, 32> text{};
  const char* const end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double parsed = 0.0;
  std::from_chars(text.data(), end, parsed);
  return parsed;
}

std::string hugging_face_config(const GptConfig& config, WeightFormat format,
                                std::optional<std::int32_t> end_token) {
  nlohmann::ordered_json file = own_config(config);
  // Their classes have ids of their own where the keys are absent.
  const json end = end_token ? json(*end_token) : json();
  file["bos_token_id"] = end;
  file["eos_token_id"] = end;
  write_labels(file, config);
  if (format != WeightFormat::kNone) file[kQuantization] = quantization_json(format, config);
  return file.dump(2) + "\n";
}

std::string adapted_config(const std::string& source, const GptConfig& config,
                           WeightFormat format) {
  const ConfigReader reader("config.json", source);
  auto file = nlohmann::ordered_json::parse(source);
  const nlohmann::ordered_json before = file;
  const GptConfig of_source = parse_hugging_face_config(source, "config.json");
  if (of_source.labels != config.labels) write_labels(file, config);
  if (!is_same_model(of_source, config)) {
    // Ours has either the first, or rope_theta and rope_scaling.
    for (const char* const key : {"rope_parameters", "rope_theta", "rope_scaling"}) file.erase(key);
    const nlohmann::ordered_json own = own_config(config);
    for (const auto& [key, value] : own.items()) {
      if (std::ranges::find(kOnlyNew, key) == kOnlyNew.end()) file[key] = value;
    }
  }
  if (of_source.vocab_size != config.vocab_size) file["vocab_size"] = config.vocab_size;
  if (format == WeightFormat::kNone) {
    file.erase(kQuantization);
  } else if (format != read_quantization(reader)) {
    file[kQuantization] = quantization_json(format, config);
  }
  return file == before ? source : file.dump(2) + "\n";
}

}  // namespace tessera::pretrained
