#include <algorithm>
#include <array>
#include <cmath>

#include "adapter/adapter_kind.h"
#include "adapter/adapter_settings.h"
#include "adapter/path_pattern.h"
#include "tessera/core/error.h"

// LoRA: its settings as texts, and what it adds to a module. Rules of PEFT's get_pattern_key.
namespace tessera::adapter {
namespace lora {
namespace {

using nlohmann::json;
using Initialization = LoraOptions::Initialization;

/// Keys that change what is computed and have no meaning here.
constexpr std::array<std::string_view, 19> kRefused{"lora_bias",
                                                    "target_parameters",
                                                    "layer_replication",
                                                    "use_qalora",
                                                    "alora_invocation_tokens",
                                                    "arrow_config",
                                                    "trainable_token_indices",
                                                    "use_bdlora",
                                                    "kasa_config",
                                                    "velora_config",
                                                    "monteclora_config",
                                                    "megatron_config",
                                                    "corda_config",
                                                    "eva_config",
                                                    "loftq_config",
                                                    "lora_ga_config",
                                                    "ensure_weight_tying",
                                                    "trainable_tokens",
                                                    "runtime_config"};
/// Keys without a meaning for what is computed.
constexpr std::array<std::string_view, 2> kIgnored{"megatron_core", "qalora_group_size"};

Initialization read_initialization(const JsonReader& reader) {
  constexpr const char* kKey = "init_lora_weights";
  const json& value = reader.value(kKey);
  if (value.is_null() || value == true) return Initialization::kDefault;
  if (value == false) return Initialization::kRandomB;
  if (value == "gaussian") return Initialization::kGaussian;
  if (value == "pissa") return Initialization::kPissa;
  const bool is_approximate =
      value.is_string() && value.get_ref<const std::string&>().starts_with("pissa_niter_");
  reader.refuse(kKey, is_approximate
                          ? "that begins at random; Tessera has the exact decomposition, \"pissa\""
                          : "Tessera has true, false, \"gaussian\" and \"pissa\"");
}

/// Reads the name that a setting has.
Initialization parse_initialization(const std::string& name) {
  if (name == "default") return Initialization::kDefault;
  if (name == "gaussian") return Initialization::kGaussian;
  if (name == "pissa") return Initialization::kPissa;
  fail(ErrorCode::kConfig, kLora.shown.name, ": init is '", name,
       "'; it may be default, gaussian and pissa");
}

json initialization_json(Initialization initialization) {
  if (initialization == Initialization::kGaussian) return "gaussian";
  if (initialization == Initialization::kPissa) return "pissa";
  return initialization == Initialization::kDefault;
}

std::vector<std::int64_t> read_layers(const JsonReader& reader) {
  constexpr const char* kKey = "layers_to_transform";
  const json& layers = reader.value(kKey);
  if (layers.is_null()) return {};
  if (layers.is_number_integer()) return {layers.get<std::int64_t>()};
  const auto is_integer = [](const json& layer) { return layer.is_number_integer(); };
  if (!layers.is_array() || !std::ranges::all_of(layers, is_integer)) {
    reader.refuse(kKey, "it must be a list of integers");
  }
  return layers.get<std::vector<std::int64_t>>();
}

AdapterConfig parse(std::string_view text, const GptConfig& config) {
  AdapterConfig adapter;
  LoraOptions lora;
  double dropout = 0.0;
  std::vector<SettingKey> keys{integer_key("r", lora.rank), number_key("alpha", lora.alpha),
                               number_key("dropout", dropout)};
  for (SettingKey& key : target_keys(adapter)) keys.push_back(std::move(key));
  keys.push_back(choice_key("rslora", "false", "true", lora.rank_stabilized));
  keys.push_back(choice_key("dora", "false", "true", lora.dora));
  keys.push_back({"init", [&](const std::vector<std::string>& values) {
                    lora.initialization = parse_initialization(values.front());
                  }});
  read_settings(text, kLora.shown.name, keys);
  lora.dropout = static_cast<float>(dropout);
  adapter.kind = std::move(lora);
  fill_targets(adapter, family_of(config).lora_targets);
  return adapter;
}

json write(const AdapterConfig& adapter, const GptConfig& config) {
  const LoraOptions& lora = *adapter.lora();
  json object = targets_json(adapter, config);
  object.update(json{
      {"alpha_pattern", lora.alpha_pattern},
      {"bias", "none"},
      {"init_lora_weights", initialization_json(lora.initialization)},
      {"layers_pattern", list_or_null(lora.layers_pattern)},
      {"layers_to_transform", lora.layers.empty() ? json() : json(lora.layers)},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", std::stod(concat(lora.dropout))},  // 0.05, not 0.05000000074505806
      {"r", lora.rank},
      {"rank_pattern", lora.rank_pattern},
      {"use_dora", lora.dora},
      {"use_rslora", lora.rank_stabilized},
  });
  return object;
}

void read(const JsonReader& reader, const GptConfig& config, AdapterConfig& adapter) {
  const json& bias = reader.value("bias");
  if (!bias.is_null() && bias != "none") {
    reader.refuse("bias", "Tessera trains biases of a model only in modules_to_save: \"none\"");
  }
  LoraOptions lora;
  lora.rank = reader.integer("r", 8);
  lora.alpha = reader.number("lora_alpha", 8.0);
  lora.dropout = static_cast<float>(reader.number("lora_dropout", 0.0));
  lora.rank_stabilized = reader.flag("use_rslora", false);
  lora.dora = reader.flag("use_dora", false);
  lora.initialization = read_initialization(reader);
  lora.layers_pattern = reader.names("layers_pattern");
  lora.layers = read_layers(reader);
  lora.rank_pattern = reader.patterns<std::int64_t>("rank_pattern");
  lora.alpha_pattern = reader.patterns<double>("alpha_pattern");
  adapter.kind = std::move(lora);
  read_targets(reader, adapter);
  fill_targets(adapter, family_of(config).lora_targets);
}

void check(const AdapterConfig& adapter, const GptConfig& config) {
  const LoraOptions& lora = *adapter.lora();
  const auto positive = [](std::int64_t rank) { return rank >= 1 && rank <= 65536; };
  require(positive(lora.rank), ErrorCode::kConfig, "LoRA: r is ", lora.rank,
          "; it must be from 1 to 65536");
  for (const auto& [pattern, rank] : lora.rank_pattern) {
    require(positive(rank), ErrorCode::kConfig, "LoRA: rank_pattern '", pattern, "' is ", rank,
            "; it must be from 1 to 65536");
  }
  require(std::isfinite(lora.alpha), ErrorCode::kConfig, "LoRA: alpha is not finite");
  require(lora.dropout >= 0.0F && lora.dropout < 1.0F, ErrorCode::kConfig, "LoRA: dropout is ",
          lora.dropout, "; it must be at least 0 and below 1");
  require(!lora.dora || lora.dropout == 0.0F, ErrorCode::kConfig, "LoRA: dropout is ", lora.dropout,
          ", and DoRA (use_dora) has none here; set lora_dropout to 0");
  check_targets(adapter, config);
}

/// The first pattern's value that matches an end of the path; `fallback` if none does.
template <typename T>
T by_pattern(const std::map<std::string, T>& patterns, const std::string& path, T fallback) {
  for (const auto& [pattern, value] : patterns) {
    if (PathPattern("(.*\\.)?(" + pattern + ")").matches(path)) return value;
  }
  return fallback;
}

/// Whether a module that the targets name is in one of the chosen blocks.
bool is_in_layers(const AdapterConfig& adapter, const std::string& path) {
  const LoraOptions& lora = *adapter.lora();
  if (lora.layers.empty() || !adapter.target_pattern.empty()) return true;
  const auto block = block_of(path, lora.layers_pattern);
  return block && std::ranges::find(lora.layers, *block) != lora.layers.end();
}

/// An embedding's: as PEFT begins it, A is zero and B normal.
std::vector<ParameterSpec> embedding_parameters(const LoraOptions& lora, const Module& module,
                                                std::int64_t rank) {
  const bool random = lora.initialization == Initialization::kRandomB;
  return {{.name = module.name + ".lora_embedding_A",
           .shape = {module.rows, rank},
           .initializer = random ? Initializer::normal(1.0F) : Initializer::constant(0)},
          {.name = module.name + ".lora_embedding_B",
           .shape = {module.inputs, rank},
           .initializer = Initializer::normal(1.0F)}};
}

std::optional<ModuleAdapter> at(const AdapterConfig& adapter, const Module& module) {
  if (!is_in_layers(adapter, module.path)) return {};
  const LoraOptions& lora = *adapter.lora();
  require(module.kind == Module::Kind::kLinear ||
              (!lora.dora && lora.initialization != Initialization::kPissa),
          ErrorCode::kConfig, lora.dora ? "DoRA (use_dora)" : "PiSSA", ": target '", module.path,
          "' is an embedding or the head, which plain LoRA alone adapts; leave one of the two out");
  const auto uniform = [](std::int64_t fan_in) {
    return Initializer::uniform(1.0F / std::sqrt(static_cast<float>(fan_in)));
  };
  const std::int64_t rank = by_pattern(lora.rank_pattern, module.path, lora.rank);
  const double alpha = by_pattern(lora.alpha_pattern, module.path, lora.alpha);
  const auto divisor = static_cast<double>(rank);
  const bool gaussian = lora.initialization == Initialization::kGaussian;
  const bool random_b = lora.initialization == Initialization::kRandomB;
  ModuleAdapter result{
      .module = module,
      .place = ModuleAdapter::Place::kBeside,
      .scale = static_cast<float>(alpha / (lora.rank_stabilized ? std::sqrt(divisor) : divisor)),
      .dropout = lora.dropout,
      .has_magnitudes = lora.dora,
      .parameters = {{.name = module.name + ".lora_A.weight",
                      .shape = {rank, module.inputs},
                      .initializer = gaussian ? Initializer::normal(1.0F / static_cast<float>(rank))
                                              : uniform(module.inputs)},
                     {.name = module.name + ".lora_B.weight",
                      .shape = {module.rows, rank},
                      .initializer = random_b ? uniform(rank) : Initializer::constant(0)}}};
  if (module.kind == Module::Kind::kEmbedding) {
    result.place = ModuleAdapter::Place::kRows;
    result.dropout = 0.0F;
    result.parameters = embedding_parameters(lora, module, rank);
  }
  if (lora.dora) {
    result.parameters.push_back({.name = module.name + ".lora_magnitude_vector",
                                 .shape = {module.rows},
                                 .initializer = Initializer::constant(1),
                                 .weight_decay_scale = 0.0F});
  }
  return result;
}

}  // namespace
}  // namespace lora

constinit const Kind kLora{
    .shown = {.setting = "lora",
              .peft_type = "LORA",
              .name = "LoRA",
              .help = "new LoRA adapters, such as r=16,alpha=32,targets=q_proj,v_proj; also "
                      "dropout, targets=all-linear, pattern (a regular expression instead of "
                      "targets), exclude, save (modules that are trained themselves), rslora, "
                      "dora and init=gaussian or pissa [as PEFT has them: r=8,alpha=8]"},
    .parse = lora::parse,
    .write = lora::write,
    .read = lora::read,
    .ignored = lora::kIgnored,
    .refused = lora::kRefused,
    .check = lora::check,
    .described =
        [](const AdapterConfig& adapter) {
          return concat(adapter.lora()->dora ? "DoRA " : "", "adapters of rank ",
                        adapter.lora()->rank);
        },
    .at = lora::at};

}  // namespace tessera::adapter
