#include <array>

#include "adapter/adapter_kind.h"
#include "adapter/adapter_settings.h"
#include "adapter/prompt_keys.h"
#include "tessera/core/error.h"

// Prefix tuning: its settings as texts. What it adds is in the blocks (block_prefix.h).
namespace tessera::adapter {
namespace prefix {
namespace {

using nlohmann::json;

/// Keys that have no meaning for the computation.
constexpr std::array<std::string_view, 3> kIgnored{"num_attention_heads", "num_layers",
                                                   "runtime_config"};
constexpr const char* kHidden = "encoder_hidden_size";
constexpr const char* kInit = "init_weights";

std::int64_t keys_width(const GptConfig& config) {
  return config.kv_heads_used() * config.head_width_used();
}

AdapterConfig parse(std::string_view text, const GptConfig& config) {
  constexpr std::int64_t kNotGiven = INT64_MIN;
  PrefixOptions prefix{.hidden = kNotGiven};
  read_settings(
      text, kPrefixTuning.shown.name,
      {integer_key("tokens", prefix.tokens),
       choice_key("projection", "false", "true", prefix.projection),
       integer_key("hidden", prefix.hidden), choice_key("init", "random", "zero", prefix.zero)});
  require(prefix.projection || prefix.hidden == kNotGiven, ErrorCode::kConfig,
          "hidden is the width of a projection; give projection=true, or leave it out");
  if (prefix.hidden == kNotGiven) prefix.hidden = keys_width(config);
  require(prefix.tokens > 0, ErrorCode::kConfig,
          "prefix tuning needs tokens=N, above 0: how many stand before each sequence");
  return {.kind = prefix};
}

json write(const AdapterConfig& adapter, const GptConfig& config) {
  const PrefixOptions& prefix = *adapter.prefix();
  const std::int64_t width = keys_width(config);
  json object = prompt_json(prefix.tokens, config, config.kv_heads_used(), width);
  object.update(json{{kHidden, prefix.hidden == 0 ? width : prefix.hidden},
                     {kInit, prefix.zero ? json("zero") : json()},
                     {"prefix_projection", prefix.projection}});
  return object;
}

void read(const JsonReader& reader, const GptConfig& config, AdapterConfig& adapter) {
  const std::int64_t width = keys_width(config);
  PrefixOptions prefix{.tokens = read_prompt_tokens(reader, width)};
  prefix.projection = reader.flag("prefix_projection", false);
  prefix.hidden = reader.integer(kHidden, width);
  const json& init = reader.value(kInit);
  if (!init.is_null() && init != "zero") reader.refuse(kInit, "it must be null or \"zero\"");
  prefix.zero = init == "zero";
  prefix.encoded = prefix.projection && reader.flag("inference_mode", false);
  adapter.kind = prefix;
}

void check(const AdapterConfig& adapter, const GptConfig& config) {
  const std::int64_t hidden = adapter.prefix()->hidden;
  require(hidden > 0 && hidden <= 65536, ErrorCode::kConfig, "prefix tuning: hidden is ", hidden,
          "; it must be from 1 to 65536");
  check_prompt(adapter, config);
}

}  // namespace
}  // namespace prefix

constinit const Kind kPrefixTuning{
    .shown = {.setting = "prefix_tuning",
              .peft_type = "PREFIX_TUNING",
              .name = "prefix tuning",
              .help = "new keys and values that are trained before those of each sequence, in each "
                      "block, instead of the model: tokens=20; projection=true makes them by two "
                      "layers, of which hidden=128 is the width between (PEFT's PREFIX_TUNING); "
                      "init=zero begins with zeros"},
    .parse = prefix::parse,
    .write = prefix::write,
    .read = prefix::read,
    .ignored = prefix::kIgnored,
    .refused = {},
    .check = prefix::check,
    .described =
        [](const AdapterConfig& adapter) {
          const bool trains_encoder = adapter.is_encoder() && !adapter.is_encoded();
          return concat("a prefix of ", adapter.prefix_tokens(), " tokens",
                        trains_encoder ? " and its projection" : "");
        },
    .at = nullptr};

}  // namespace tessera::adapter
