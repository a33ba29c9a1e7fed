#include "pretrained/bert_config.h"

#include <utility>
#include <vector>

#include "pretrained/hugging_face_config.h"

namespace tessera::pretrained {
namespace {

using nlohmann::json;

/// Keys that change what is computed, and the values that mean what is computed here.
const std::vector<std::pair<const char*, std::vector<json>>> kFixedOfBert{
    {"hidden_act", {"gelu"}},
    {"position_embedding_type", {"absolute"}},
    {"is_decoder", {false}},
    {"add_cross_attention", {false}},
    {"is_encoder_decoder", {false}},
    {"chunk_size_feed_forward", {0}},
    {"pruned_heads", {nullptr, json::object()}}};

}  // namespace

GptConfig read_bert_config(const ConfigReader& reader) {
  // Where a key is absent, the class has the sizes of bert-base.
  GptConfig config{.vocab_size = reader.size("vocab_size", 30522),
                   .context_length = reader.size("max_position_embeddings", 512),
                   .layers = reader.size("num_hidden_layers", 12),
                   .heads = reader.size("num_attention_heads", 12),
                   .width = reader.size("hidden_size", 768),
                   .tie_embedding = reader.flag("tie_word_embeddings", true),
                   .family = GptFamily::kBert,
                   .mlp_width = reader.size("intermediate_size", 3072),
                   .norm_epsilon = static_cast<float>(reader.number("layer_norm_eps", 1e-12)),
                   .token_types = reader.size("type_vocab_size", 2)};
  for (const auto& [key, values] : kFixedOfBert) reader.require_value(key, values);
  if (config.mlp_width == 4 * config.width) config.mlp_width = 0;
  return config;
}

nlohmann::ordered_json bert_config_json(const GptConfig& config) {
  const double dropout = with_fewest_digits(config.dropout);
  return {{"architectures", {"BertForMaskedLM"}},
          {"model_type", "bert"},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.context_length},
          {"hidden_size", config.width},
          {"intermediate_size", config.mlp_width_used()},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.heads},
          {"type_vocab_size", config.token_types},
          {"hidden_act", "gelu"},
          {"hidden_dropout_prob", dropout},
          {"attention_probs_dropout_prob", 0.0},
          {"classifier_dropout", nullptr},
          {"layer_norm_eps", with_fewest_digits(config.norm_epsilon)},
          {"initializer_range", 0.02},
          {"position_embedding_type", "absolute"},
          {"tie_word_embeddings", config.tie_embedding},
          {"use_cache", true},
          {"dtype", "float32"}};
}

}  // namespace tessera::pretrained
