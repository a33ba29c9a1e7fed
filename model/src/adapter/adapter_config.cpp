#include "tessera/model/adapter_config.h"

#include <algorithm>

#include "adapter/adapter_kind.h"
#include "pretrained/config_reader.h"
#include "strict_json.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

// The code that kinds of adapters share; the kinds themselves are rows of a table.
namespace tessera {
namespace {

using adapter::JsonReader;
using adapter::Kind;
using nlohmann::json;

/// In the order of AdapterConfig::kind.
constexpr std::array<const Kind*, 5> kKinds{&adapter::kLora, &adapter::kIa3,
                                            &adapter::kPromptTuning, &adapter::kPTuning,
                                            &adapter::kPrefixTuning};

std::string list_of(std::string_view AdapterKind::*member) {
  std::string all;
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (i > 0) all += i + 1 < kKinds.size() ? ", " : " and ";
    all += kKinds[i]->shown.*member;
  }
  return all;
}

const Kind& kind_named(const JsonReader& reader, const std::string& path) {
  const json& type = reader.value("peft_type");
  if (type.is_null()) {
    fail(ErrorCode::kConfig, "'", path,
         "' has no peft_type, so it is no adapter_config.json of PEFT");
  }
  for (const Kind* kind : kKinds) {
    if (type == kind->shown.peft_type) return *kind;
  }
  reader.refuse("peft_type", "Tessera has " + list_of(&AdapterKind::peft_type));
}

void sort_lists(AdapterConfig& adapter) {
  for (auto* const list : {&adapter.targets, &adapter.excluded, &adapter.saved_modules}) {
    std::ranges::sort(*list);
  }
}

}  // namespace

namespace adapter {

const Kind& row_of(const AdapterConfig& adapter) {
  require(adapter.is_set(), ErrorCode::kInvalidArgument, "the model has no adapters");
  return *kKinds.at(adapter.kind.index() - 1);
}

void fill_targets(AdapterConfig& adapter, std::span<const std::string_view> of_family) {
  if (!adapter.targets.empty() || !adapter.target_pattern.empty()) return;
  for (const std::string_view name : of_family) {
    if (!name.empty()) adapter.targets.emplace_back(name);
  }
}

json targets_json(const AdapterConfig& adapter, const GptConfig& config) {
  return {{"exclude_modules", list_or_null(adapter.excluded, adapter.excluded_pattern)},
          {"fan_in_fan_out", config.family == GptFamily::kGpt2},
          {"target_modules", list_or_null(adapter.targets, adapter.target_pattern)}};
}

void read_targets(const JsonReader& reader, AdapterConfig& adapter) {
  adapter.targets = reader.names("target_modules", &adapter.target_pattern);
  adapter.excluded = reader.names("exclude_modules", &adapter.excluded_pattern);
  static_cast<void>(reader.flag("fan_in_fan_out", false));  // our matrices are never transposed
}

void check_targets(const AdapterConfig& adapter, const GptConfig& config) {
  const std::string_view kind = row_of(adapter).shown.name;
  const bool has_targets = !adapter.targets.empty() || !adapter.target_pattern.empty();
  require(has_targets, ErrorCode::kConfig, kind, ": a ", family_of(config).name,
          " has no modules that are adapted unless told; name them: targets=qkv_proj,o_proj or "
          "targets=all-linear");
  for (const std::string_view name : {"lm_head", "embed_tokens", "wte", "wpe"}) {
    const auto names_it = [&](const std::vector<std::string>& list) {
      return std::ranges::any_of(list, [&](const std::string& end) { return end.ends_with(name); });
    };
    const bool adapts_it = adapter.lora() != nullptr && name != "wpe";
    require(adapts_it || !names_it(adapter.targets), ErrorCode::kConfig, kind, ": target ", name,
            name == "wpe" ? " has the positions, which stay as they are"
                          : " is an embedding or the head, which LoRA alone adapts",
            ": train it itself (modules_to_save), or leave it out");
    const bool is_tied = config.tie_embedding && name != "wpe";
    require(!is_tied || !names_it(adapter.saved_modules), ErrorCode::kConfig, kind,
            ": modules_to_save names ", name,
            ", but embedding and head are one matrix in this model, and PEFT would train a copy "
            "of one of them; leave it out");
  }
}

}  // namespace adapter

std::vector<AdapterKind> adapter_kinds() {
  std::vector<AdapterKind> kinds;
  for (const Kind* kind : kKinds) kinds.push_back(kind->shown);
  return kinds;
}

AdapterKind kind_of(const AdapterConfig& adapter) { return adapter::row_of(adapter).shown; }

AdapterConfig parse_adapter(std::string_view setting, std::string_view text,
                            const GptConfig& config) {
  for (const Kind* kind : kKinds) {
    if (kind->shown.setting != setting) continue;
    AdapterConfig adapter = kind->parse(text, config);
    sort_lists(adapter);
    kind->check(adapter, config);
    return adapter;
  }
  fail(ErrorCode::kInvalidArgument, "'", setting, "' is no setting of adapters; there are ",
       list_of(&AdapterKind::setting));
}

std::string to_adapter_json(const AdapterConfig& adapter, const GptConfig& config,
                            const std::string& base, int indent) {
  const Kind& kind = adapter::row_of(adapter);
  json object = kind.write(adapter, config);
  std::vector<std::string> saved = adapter.saved_modules;
  const bool classifies = !config.labels.empty();
  const std::string_view head = family_of(config).classifier;
  if (classifies && std::ranges::find(saved, head) == saved.end()) {
    saved.emplace_back(head);
    std::ranges::sort(saved);
  }
  // An encoder that is trained is no state for inference.
  const bool trains_encoder = adapter.is_encoder() && !adapter.is_encoded();
  object.update(json{{"base_model_name_or_path", base.empty() ? json() : json(base)},
                     {"inference_mode", !trains_encoder},
                     {"modules_to_save", adapter::list_or_null(saved)},
                     {"peft_type", kind.shown.peft_type},
                     {"revision", nullptr},
                     {"task_type", classifies                  ? json("SEQ_CLS")
                                   : family_of(config).encoder ? json()  // PEFT has none of masks
                                                               : json("CAUSAL_LM")}});
  return object.dump(indent);
}

AdapterConfig parse_adapter_json(std::string_view text, const std::string& path,
                                 const GptConfig& config) {
  const json object = data::parse_strict_json(text, path);
  const JsonReader reader(object, path);
  const Kind& kind = kind_named(reader, path);
  for (const char* const key :
       {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"}) {
    static_cast<void>(reader.value(key));
  }
  const bool classifies = reader.value("task_type") == "SEQ_CLS";
  require(!classifies || !config.labels.empty(), ErrorCode::kConfig, "'", path,
          "': task_type is \"SEQ_CLS\", an adapter of a classifier, and the model has no labels; "
          "give them by `labels`");
  require(classifies || config.labels.empty() || reader.value("task_type").is_null(),
          ErrorCode::kConfig, "'", path, "': task_type is ",
          pretrained::shown(reader.value("task_type")),
          ", and the model classifies sequences, for which it is \"SEQ_CLS\"");
  AdapterConfig adapter;
  kind.read(reader, config, adapter);
  adapter.saved_modules = reader.names("modules_to_save");
  reader.finish(kind.shown.name, kind.ignored, kind.refused);
  // The task type saves these by itself.
  std::erase_if(adapter.saved_modules, [&](const std::string& module) {
    return classifies && (module == "classifier" || module == "score");
  });
  sort_lists(adapter);
  kind.check(adapter, config);
  return adapter;
}

}  // namespace tessera
