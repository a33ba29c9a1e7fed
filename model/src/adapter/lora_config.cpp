#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "pretrained/config_reader.h"
#include "strict_json.h"
#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"
#include "tessera/model/gpt.h"
#include "tessera/model/gpt_family.h"
#include "tessera/model/lora.h"

// LoRA's settings as texts: a flag's value, and PEFT's adapter_config.json.
namespace tessera {
namespace {

using nlohmann::json;
using pretrained::shown;
using Initialization = LoraConfig::Initialization;

/// Keys that change what is computed and have no meaning here: PEFT's value for "not used" is null,
/// false or an empty list or object.
constexpr std::array<std::string_view, 20> kRefused{"use_dora",          "lora_bias",
                                                    "target_parameters", "layer_replication",
                                                    "use_qalora",        "alora_invocation_tokens",
                                                    "arrow_config",      "trainable_token_indices",
                                                    "use_bdlora",        "kasa_config",
                                                    "velora_config",     "monteclora_config",
                                                    "megatron_config",   "corda_config",
                                                    "eva_config",        "loftq_config",
                                                    "lora_ga_config",    "ensure_weight_tying",
                                                    "trainable_tokens",  "runtime_config"};

/// Keys without a meaning for what is computed.
constexpr std::array<std::string_view, 11> kIgnored{"auto_mapping",
                                                    "base_model_name_or_path",
                                                    "fan_in_fan_out",
                                                    "inference_mode",
                                                    "megatron_core",
                                                    "peft_type",
                                                    "peft_version",
                                                    "qalora_group_size",
                                                    "revision",
                                                    "task_type",
                                                    "bias"};

bool is_unset(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) ||
         value == "";
}

class AdapterReader {
 public:
  AdapterReader(const json& object, const std::string& path) : object_(object), path_(path) {
    require(object.is_object(), ErrorCode::kConfig, "'", path, "' is no JSON object");
  }

  [[noreturn]] void refuse(std::string_view key, std::string_view what) const {
    fail(ErrorCode::kConfig, "'", path_, "': ", key, " is ", shown(object_.at(key)), "; ", what);
  }
  const json& value(std::string_view key) const {
    static const json kNull;
    seen_.insert(std::string(key));
    const auto found = object_.find(key);
    return found == object_.end() ? kNull : *found;
  }
  double number(std::string_view key, double fallback) const {
    const json& read = value(key);
    if (read.is_null()) return fallback;
    if (!read.is_number()) refuse(key, "it must be a number");
    return read.get<double>();
  }
  std::int64_t integer(std::string_view key, std::int64_t fallback) const {
    const json& read = value(key);
    if (read.is_null()) return fallback;
    if (!read.is_number_integer()) refuse(key, "it must be an integer");
    return read.get<std::int64_t>();
  }
  bool flag(std::string_view key) const {
    const json& read = value(key);
    if (read.is_null()) return false;
    if (!read.is_boolean()) refuse(key, "it must be true or false");
    return read.get<bool>();
  }
  /// A list of texts, or one text alone, which goes to `pattern` if there is one.
  std::vector<std::string> names(std::string_view key, std::string* pattern = nullptr) const {
    const json& read = value(key);
    if (read.is_null()) return {};
    if (read.is_string()) {
      if (pattern == nullptr) return {read.get<std::string>()};
      *pattern = read.get<std::string>();
      return {};
    }
    const auto is_text = [](const json& name) { return name.is_string() && name != ""; };
    if (!read.is_array() || !std::ranges::all_of(read, is_text)) {
      refuse(key, "it must be a text or a list of texts");
    }
    auto all = read.get<std::vector<std::string>>();
    std::ranges::sort(all);  // PEFT writes sets, in any order
    return all;
  }
  template <typename T>
  std::map<std::string, T> patterns(std::string_view key) const {
    const json& read = value(key);
    if (read.is_null()) return {};
    const auto fits = [](const json& number) {
      return std::is_integral_v<T> ? number.is_number_integer() : number.is_number();
    };
    if (!read.is_object() || !std::ranges::all_of(read, fits)) {
      refuse(key, "it must be an object of numbers");
    }
    return read.get<std::map<std::string, T>>();
  }
  /// Refuses what no one has asked for.
  void finish() const {
    for (const auto& [key, read] : object_.items()) {
      if (seen_.contains(key) || std::ranges::find(kIgnored, key) != kIgnored.end()) continue;
      if (is_unset(read)) continue;
      const bool known = std::ranges::find(kRefused, key) != kRefused.end();
      refuse(key, known ? "Tessera's LoRA does not have it; train the adapter without"
                        : "Tessera does not know this key, so it may change what is computed");
    }
  }

 private:
  const json& object_;
  std::string path_;
  mutable std::set<std::string, std::less<>> seen_;
};

Initialization read_initialization(const AdapterReader& reader) {
  constexpr const char* kKey = "init_lora_weights";
  const json& value = reader.value(kKey);
  if (value.is_null() || value == true) return Initialization::kDefault;
  if (value == false) return Initialization::kRandomB;
  if (value == "gaussian") return Initialization::kGaussian;
  reader.refuse(kKey, "Tessera has true, false and \"gaussian\"");
}

json initialization_json(Initialization initialization) {
  if (initialization == Initialization::kGaussian) return "gaussian";
  return initialization == Initialization::kDefault;
}

json list_or_null(const std::vector<std::string>& list, const std::string& pattern = "") {
  if (!pattern.empty()) return pattern;
  return list.empty() ? json() : json(list);
}

double parse_number(std::string_view key, const std::string& text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(error == std::errc() && end == text.data() + text.size(), ErrorCode::kConfig, key, "=",
          text, " is no number");
  return number;
}

/// "key=value" parts; a part without '=' goes on with the list of the one before it.
std::vector<std::pair<std::string, std::vector<std::string>>> split_settings(
    std::string_view text) {
  std::vector<std::pair<std::string, std::vector<std::string>>> settings;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const std::size_t equals = part.find('=');
    require(equals != std::string_view::npos || !settings.empty(), ErrorCode::kConfig, "'", part,
            "' has no '='; give r=16,alpha=32,targets=q_proj,v_proj and the like");
    if (equals == std::string_view::npos) {
      settings.back().second.emplace_back(part);
    } else {
      settings.emplace_back(part.substr(0, equals),
                            std::vector<std::string>{std::string(part.substr(equals + 1))});
    }
  }
  return settings;
}

}  // namespace

LoraConfig parse_lora(std::string_view text, const GptConfig& config) {
  LoraConfig lora{.rank = 8};
  using Values = std::vector<std::string>;
  const std::map<std::string, std::function<void(const std::string&, const Values&)>, std::less<>>
      keys{
          {"r",
           [&](const std::string& key, const Values& v) {
             const double rank = parse_number(key, v.front());
             lora.rank = static_cast<std::int64_t>(rank);
             require(static_cast<double>(lora.rank) == rank, ErrorCode::kConfig, "r=", v.front(),
                     " is no integer");
           }},
          {"alpha", [&](const std::string& key,
                        const Values& v) { lora.alpha = parse_number(key, v.front()); }},
          {"dropout",
           [&](const std::string& key, const Values& v) {
             lora.dropout = static_cast<float>(parse_number(key, v.front()));
           }},
          {"targets",
           [&](const std::string&, const Values& v) {
             lora.targets = v;
             if (v == Values{"all-linear"}) {
               lora.targets.clear();
               lora.target_pattern = v.front();
             }
           }},
          {"pattern",
           [&](const std::string&, const Values& v) { lora.target_pattern = v.front(); }},
          {"exclude", [&](const std::string&, const Values& v) { lora.excluded = v; }},
          {"save", [&](const std::string&, const Values& v) { lora.saved_modules = v; }},
          {"rslora",
           [&](const std::string& key, const Values& v) {
             require(v.front() == "true" || v.front() == "false", ErrorCode::kConfig, key, "=",
                     v.front(), "; it is true or false");
             lora.rank_stabilized = v.front() == "true";
           }},
          {"init",
           [&](const std::string& key, const Values& v) {
             require(v.front() == "default" || v.front() == "gaussian", ErrorCode::kConfig, key,
                     "=", v.front(), "; it is default or gaussian");
             if (v.front() == "gaussian") lora.initialization = Initialization::kGaussian;
           }},
      };
  std::vector<std::string> names;
  for (const auto& [name, set] : keys) names.push_back(name);
  const std::set<std::string_view> lists{"targets", "exclude", "save"};
  for (const auto& [key, values] : split_settings(text)) {
    const auto found = keys.find(key);
    const std::string near = found == keys.end() ? nearest_name(key, names) : "";
    require(found != keys.end(), ErrorCode::kConfig, "'", key, "' is no setting of LoRA",
            near.empty() ? "" : concat("; did you mean '", near, "'?"),
            "; there are r, alpha, dropout, targets, pattern, exclude, save, rslora and init");
    require(lists.contains(key) || values.size() == 1, ErrorCode::kConfig, key, " takes one value");
    found->second(key, values);
  }
  if (lora.targets.empty() && lora.target_pattern.empty()) {
    lora.targets = default_lora_targets(config);
  }
  for (auto* const list : {&lora.targets, &lora.excluded, &lora.saved_modules}) {
    std::ranges::sort(*list);
  }
  check(lora, config);
  return lora;
}

std::string to_adapter_json(const LoraConfig& lora, const GptConfig& config,
                            const std::string& base, int indent) {
  const json object{
      {"alpha_pattern", lora.alpha_pattern},
      {"base_model_name_or_path", base.empty() ? json() : json(base)},
      {"bias", "none"},
      {"exclude_modules", list_or_null(lora.excluded, lora.excluded_pattern)},
      {"fan_in_fan_out", config.family == GptFamily::kGpt2},
      {"inference_mode", true},
      {"init_lora_weights", initialization_json(lora.initialization)},
      {"layers_pattern", list_or_null(lora.layers_pattern)},
      {"layers_to_transform", lora.layers.empty() ? json() : json(lora.layers)},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", std::stod(concat(lora.dropout))},  // 0.05, not 0.05000000074505806
      {"modules_to_save", list_or_null(lora.saved_modules)},
      {"peft_type", "LORA"},
      {"r", lora.rank},
      {"rank_pattern", lora.rank_pattern},
      {"revision", nullptr},
      {"target_modules", list_or_null(lora.targets, lora.target_pattern)},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", false},
      {"use_rslora", lora.rank_stabilized},
  };
  return object.dump(indent);
}

LoraConfig parse_adapter_json(std::string_view text, const std::string& path,
                              const GptConfig& config) {
  const json object = data::parse_strict_json(text, path);
  const AdapterReader reader(object, path);
  if (reader.value("peft_type") != "LORA") {
    if (!object.contains("peft_type")) {
      fail(ErrorCode::kConfig, "'", path,
           "' has no peft_type, so it is no adapter_config.json of PEFT");
    }
    reader.refuse("peft_type", "Tessera has LORA");
  }
  if (object.contains("bias") && object.at("bias") != "none") {
    reader.refuse("bias", "Tessera trains biases of a model only in modules_to_save: \"none\"");
  }
  LoraConfig lora;
  lora.rank = reader.integer("r", 8);
  lora.alpha = reader.number("lora_alpha", 8.0);
  lora.dropout = static_cast<float>(reader.number("lora_dropout", 0.0));
  lora.rank_stabilized = reader.flag("use_rslora");
  lora.initialization = read_initialization(reader);
  lora.targets = reader.names("target_modules", &lora.target_pattern);
  lora.excluded = reader.names("exclude_modules", &lora.excluded_pattern);
  lora.layers_pattern = reader.names("layers_pattern");
  const json& layers = reader.value("layers_to_transform");
  if (layers.is_number_integer()) {
    lora.layers = {layers.get<std::int64_t>()};
  } else if (!layers.is_null()) {
    const auto is_integer = [](const json& layer) { return layer.is_number_integer(); };
    if (!layers.is_array() || !std::ranges::all_of(layers, is_integer)) {
      reader.refuse("layers_to_transform", "it must be a list of integers");
    }
    lora.layers = layers.get<std::vector<std::int64_t>>();
  }
  lora.rank_pattern = reader.patterns<std::int64_t>("rank_pattern");
  lora.alpha_pattern = reader.patterns<double>("alpha_pattern");
  lora.saved_modules = reader.names("modules_to_save");
  reader.finish();
  if (lora.targets.empty() && lora.target_pattern.empty()) {
    lora.targets = default_lora_targets(config);
  }
  check(lora, config);
  return lora;
}

void check(const LoraConfig& lora, const GptConfig& config) {
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
  const bool has_targets = !lora.targets.empty() || !lora.target_pattern.empty();
  require(has_targets, ErrorCode::kConfig, "LoRA: a ", family_of(config).name,
          " has no modules that are adapted unless told; name them: targets=qkv_proj,o_proj or "
          "targets=all-linear");
  for (const std::string_view name : {"lm_head", "embed_tokens", "wte", "wpe"}) {
    const auto names_it = [&](const std::vector<std::string>& list) {
      return std::ranges::any_of(list, [&](const std::string& end) { return end.ends_with(name); });
    };
    require(!names_it(lora.targets), ErrorCode::kConfig, "LoRA: target ", name,
            " is an embedding or the head; Tessera adapts the linear modules of blocks: train it "
            "itself (modules_to_save), or leave it out");
    const bool is_tied = config.tie_embedding && name != "wpe";
    require(!is_tied || !names_it(lora.saved_modules), ErrorCode::kConfig,
            "LoRA: modules_to_save names ", name,
            ", but embedding and head are one matrix in this model, and PEFT would train a copy "
            "of one of them; leave it out");
  }
}

}  // namespace tessera
