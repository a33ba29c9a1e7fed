#include "adapter/prompt_keys.h"

#include "tessera/core/error.h"

namespace tessera::adapter {

nlohmann::json prompt_json(std::int64_t tokens, const GptConfig& config, std::int64_t heads,
                           std::int64_t width) {
  return {{"num_attention_heads", heads},
          {"num_layers", config.layers},
          {"num_transformer_submodules", 1},
          {"num_virtual_tokens", tokens},
          {"token_dim", width}};
}

std::int64_t read_prompt_tokens(const JsonReader& reader, std::int64_t width) {
  constexpr const char* kTokens = "num_virtual_tokens";
  if (reader.value(kTokens).is_null()) reader.refuse_without(kTokens);
  const std::int64_t tokens = reader.integer(kTokens, 0);
  if (tokens <= 0) reader.refuse(kTokens, "it must be above 0");
  if (reader.integer("token_dim", width) != width) {
    reader.refuse("token_dim", concat("the model has ", width, " channels"));
  }
  if (reader.integer("num_transformer_submodules", 1) != 1) {
    reader.refuse("num_transformer_submodules", "a decoder has 1");
  }
  return tokens;
}

void check_prompt(const AdapterConfig& adapter, const GptConfig& config) {
  require(adapter.prompt_tokens() < config.context_length, ErrorCode::kConfig, "a prompt of ",
          adapter.prompt_tokens(), " tokens leaves none of the model's context of ",
          config.context_length);
  require(adapter.saved_modules.empty(), ErrorCode::kConfig,
          "a tuned prompt stands alone, without modules_to_save");
}

}  // namespace tessera::adapter
