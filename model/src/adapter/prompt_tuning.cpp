#include <array>

#include "adapter/adapter_kind.h"
#include "adapter/adapter_settings.h"
#include "adapter/prompt_keys.h"
#include "tessera/core/error.h"

// Prompt tuning: its settings as texts. What it adds is in the embedding.
namespace tessera::adapter {
namespace prompt {
namespace {

using nlohmann::json;

/// Keys that say how the prompt began, or have no meaning for the computation.
constexpr std::array<std::string_view, 7> kIgnored{"num_attention_heads",
                                                   "num_layers",
                                                   "prompt_tuning_init_text",
                                                   "tokenizer_kwargs",
                                                   "tokenizer_name_or_path",
                                                   "runtime_config",
                                                   "prompt_tuning_init_state_dict_path"};

AdapterConfig parse(std::string_view text, const GptConfig& /*config*/) {
  PromptOptions prompt;
  const auto set_init = [](const std::vector<std::string>& values) {
    require(values.front() == "random", ErrorCode::kConfig, "init=", values.front(),
            " is not built; new prompts begin as random numbers: init=random, or give `adapter` "
            "a prompt that PEFT has begun");
  };
  read_settings(text, kPromptTuning.shown.name,
                {integer_key("tokens", prompt.tokens), {"init", set_init}});
  require(prompt.tokens > 0, ErrorCode::kConfig,
          "prompt tuning needs tokens=N, above 0: how many stand in front of each sequence");
  return {.kind = std::move(prompt)};
}

json write(const AdapterConfig& adapter, const GptConfig& config) {
  const PromptOptions& prompt = *adapter.prompt();
  json object = prompt_json(prompt.tokens, config, config.heads, config.width);
  object.update(json{{"prompt_tuning_init", prompt.initialization},
                     {"prompt_tuning_init_text", nullptr},
                     {"tokenizer_kwargs", nullptr},
                     {"tokenizer_name_or_path", nullptr}});
  return object;
}

void read(const JsonReader& reader, const GptConfig& config, AdapterConfig& adapter) {
  PromptOptions prompt{.tokens = read_prompt_tokens(reader, config.width)};
  const json& begun = reader.value("prompt_tuning_init");
  if (begun.is_string()) {
    prompt.initialization = begun.get<std::string>();
  } else if (!begun.is_null()) {
    reader.refuse("prompt_tuning_init", "it must be a text");
  }
  adapter.kind = std::move(prompt);
}

}  // namespace
}  // namespace prompt

constinit const Kind kPromptTuning{
    .shown = {.setting = "prompt_tuning",
              .peft_type = "PROMPT_TUNING",
              .name = "prompt tuning",
              .help = "a new prompt that is trained in front of each sequence, instead of the "
                      "model: tokens=20 (PEFT's PROMPT_TUNING, begun with random numbers)"},
    .parse = prompt::parse,
    .write = prompt::write,
    .read = prompt::read,
    .ignored = prompt::kIgnored,
    .refused = {},
    .check = check_prompt,
    .described =
        [](const AdapterConfig& adapter) {
          return concat("a prompt of ", adapter.prompt_tokens(), " tokens");
        },
    .at = nullptr};

}  // namespace tessera::adapter
