#include <array>

#include "adapter/adapter_kind.h"
#include "adapter/adapter_settings.h"
#include "adapter/prompt_keys.h"
#include "tessera/core/error.h"

// P-tuning: its settings as texts. What it adds is in the embedding (prompt_encoder.h).
namespace tessera::adapter {
namespace p_tuning {
namespace {

using nlohmann::json;

/// Keys that have no meaning for the computation: the last two are of the LSTM.
constexpr std::array<std::string_view, 5> kIgnored{
    "num_attention_heads", "num_layers", "runtime_config", "encoder_num_layers", "encoder_dropout"};
constexpr const char* kEncoder = "encoder_reparameterization_type";
constexpr const char* kHidden = "encoder_hidden_size";

AdapterConfig parse(std::string_view text, const GptConfig& config) {
  PromptEncoderOptions encoder{.hidden = config.width};
  const auto set_encoder = [](const std::vector<std::string>& values) {
    require(values.front() == "mlp" || values.front() == "MLP", ErrorCode::kConfig,
            "encoder=", values.front(), " is not built; PEFT recommends the MLP: encoder=mlp");
  };
  read_settings(text, kPTuning.shown.name,
                {integer_key("tokens", encoder.tokens),
                 integer_key("hidden", encoder.hidden),
                 {"encoder", set_encoder}});
  require(encoder.tokens > 0, ErrorCode::kConfig,
          "P-tuning needs tokens=N, above 0: how many stand in front of each sequence");
  return {.kind = encoder};
}

json write(const AdapterConfig& adapter, const GptConfig& config) {
  const PromptEncoderOptions& encoder = *adapter.prompt_encoder();
  json object = prompt_json(encoder.tokens, config, config.heads, config.width);
  object.update(json{{"encoder_dropout", 0.0},
                     {kHidden, encoder.hidden == 0 ? config.width : encoder.hidden},
                     {"encoder_num_layers", 2},
                     {kEncoder, "MLP"}});
  return object;
}

void read(const JsonReader& reader, const GptConfig& config, AdapterConfig& adapter) {
  PromptEncoderOptions encoder{.tokens = read_prompt_tokens(reader, config.width)};
  const json& type = reader.value(kEncoder);
  if (!type.is_null() && type != "MLP") {
    reader.refuse(kEncoder, "Tessera has the encoder \"MLP\", which PEFT recommends");
  }
  encoder.hidden = reader.integer(kHidden, config.width);
  encoder.encoded = reader.flag("inference_mode", false);
  adapter.kind = encoder;
}

void check(const AdapterConfig& adapter, const GptConfig& config) {
  const std::int64_t hidden = adapter.prompt_encoder()->hidden;
  require(hidden > 0 && hidden <= 65536, ErrorCode::kConfig, "P-tuning: hidden is ", hidden,
          "; it must be from 1 to 65536");
  check_prompt(adapter, config);
}

}  // namespace
}  // namespace p_tuning

constinit const Kind kPTuning{
    .shown = {.setting = "p_tuning",
              .peft_type = "P_TUNING",
              .name = "P-tuning",
              .help = "a new prompt in front of each sequence, made by an MLP that is trained "
                      "instead of the model: tokens=20,hidden=128 (PEFT's P_TUNING) [hidden: the "
                      "model's width]"},
    .parse = p_tuning::parse,
    .write = p_tuning::write,
    .read = p_tuning::read,
    .ignored = p_tuning::kIgnored,
    .refused = {},
    .check = p_tuning::check,
    .described =
        [](const AdapterConfig& adapter) {
          return concat("a prompt of ", adapter.prompt_tokens(), " tokens",
                        adapter.prompt_encoder()->encoded ? "" : " and its encoder");
        },
    .at = nullptr};

}  // namespace tessera::adapter
