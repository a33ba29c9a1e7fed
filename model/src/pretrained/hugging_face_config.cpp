#include "pretrained/hugging_face_config.h"

#include <algorithm>
#include <array>
#include <vector>

#include "gpt_config.h"
#include "strict_json.h"
#include "tessera/core/error.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostConfigBytes = 16 << 20;
constexpr std::int64_t kMostOfAnything = 1 << 24;

/// The class's default where the key is absent. Either name may be there.
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
      {"quantization_config", {nullptr}},
  };
}

std::string shown(const json& value) {
  constexpr std::size_t kMost = 80;
  const std::string text = value.dump(-1, ' ', true);
  return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
}

bool is_gpt2(const json& architectures) {
  const auto known = [](const json& name) {
    return name == "GPT2LMHeadModel" || name == "GPT2Model";
  };
  return architectures.is_null() ||
         (architectures.is_array() && std::ranges::any_of(architectures, known));
}

std::int64_t size_in(const json& config, const Size& size, const std::string& path) {
  const char* const key = config.contains(size.key) ? size.key : size.alias;
  if (!config.contains(key)) return size.fallback;
  const json& value = config.at(key);
  require(value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 &&
              value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMostOfAnything),
          ErrorCode::kConfig, "'", path, "': ", key, " is ", shown(value),
          ", and must be an integer from 1 to ", kMostOfAnything);
  return value.get<std::int64_t>();
}

}  // namespace

GptConfig read_hugging_face_config(const std::string& path) {
  const json file = data::read_strict_json(path, kMostConfigBytes);
  require(file.is_object(), ErrorCode::kConfig, "'", path, "' is no JSON object");
  const auto value_of = [&](const char* key, const json& fallback) {
    return file.contains(key) ? file.at(key) : fallback;
  };
  const json type = value_of("model_type", nullptr);
  require(type == "gpt2", ErrorCode::kConfig, "'", path, "': model_type is ", shown(type),
          "; only \"gpt2\" can be read");
  const json architectures = value_of("architectures", nullptr);
  require(is_gpt2(architectures), ErrorCode::kConfig, "'", path, "': architectures is ",
          shown(architectures), "; only GPT2LMHeadModel can be read");
  GptConfig config;
  for (const Size& size : kSizes) config.*size.member = size_in(file, size, path);
  for (const Fixed& fixed : fixed_keys(config)) {
    const json value = value_of(fixed.key, fixed.values.front());
    require(std::ranges::find(fixed.values, value) != fixed.values.end(), ErrorCode::kConfig, "'",
            path, "': ", fixed.key, " is ", shown(value), ", and only ", shown(fixed.values.back()),
            " is computed here: this model cannot be read");
  }
  const json tied = value_of("tie_word_embeddings", true);
  require(tied.is_boolean(), ErrorCode::kConfig, "'", path, "': tie_word_embeddings is ",
          shown(tied), ", and must be true or false");
  config.tie_embedding = tied.get<bool>();
  try {
    check(config);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, "'", path, "': ", error.what());
  }
  return config;
}

std::string hugging_face_config(const GptConfig& config) {
  constexpr std::int64_t kEndOfText = 50256;  // GPT-2's only special token
  const json end = config.vocab_size > kEndOfText ? json(kEndOfText) : json();
  const double dropout = config.dropout;
  const nlohmann::ordered_json file{{"architectures", {"GPT2LMHeadModel"}},
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
                                    {"bos_token_id", end},
                                    {"eos_token_id", end},
                                    {"use_cache", true},
                                    {"dtype", "float32"}};
  return file.dump(2) + "\n";
}

}  // namespace tessera::pretrained
