#include <array>
#include <filesystem>

#include "foreign/accelerate.h"
#include "foreign/key_table.h"

namespace tessera {
namespace {

using foreign::Node;

/// A variable that Accelerate's launcher exports and the key of its file that it comes from.
struct Variable {
  const char* name;
  const char* section;  ///< "" at the top
  const char* key;
};

constexpr const char* kFsdp = "fsdp_config";
constexpr const char* kMesh = "parallelism_config";
constexpr const char* kDeepSpeed = "deepspeed_config";
constexpr const char* kDynamo = "dynamo_config";

constexpr std::array kVariables{
    Variable{"ACCELERATE_MIXED_PRECISION", "", "mixed_precision"},
    Variable{"ACCELERATE_DEBUG_MODE", "", "debug"},
    Variable{"ACCELERATE_DYNAMO_BACKEND", kDynamo, "dynamo_backend"},
    Variable{"FSDP_VERSION", kFsdp, "fsdp_version"},
    Variable{"FSDP_SHARDING_STRATEGY", kFsdp, "fsdp_sharding_strategy"},
    Variable{"FSDP_RESHARD_AFTER_FORWARD", kFsdp, "fsdp_reshard_after_forward"},
    Variable{"FSDP_OFFLOAD_PARAMS", kFsdp, "fsdp_offload_params"},
    Variable{"FSDP_MIN_NUM_PARAMS", kFsdp, "fsdp_min_num_params"},
    Variable{"FSDP_AUTO_WRAP_POLICY", kFsdp, "fsdp_auto_wrap_policy"},
    Variable{"FSDP_TRANSFORMER_CLS_TO_WRAP", kFsdp, "fsdp_transformer_layer_cls_to_wrap"},
    Variable{"FSDP_BACKWARD_PREFETCH", kFsdp, "fsdp_backward_prefetch"},
    Variable{"FSDP_FORWARD_PREFETCH", kFsdp, "fsdp_forward_prefetch"},
    Variable{"FSDP_STATE_DICT_TYPE", kFsdp, "fsdp_state_dict_type"},
    Variable{"FSDP_USE_ORIG_PARAMS", kFsdp, "fsdp_use_orig_params"},
    Variable{"FSDP_CPU_RAM_EFFICIENT_LOADING", kFsdp, "fsdp_cpu_ram_efficient_loading"},
    Variable{"FSDP_SYNC_MODULE_STATES", kFsdp, "fsdp_sync_module_states"},
    Variable{"FSDP_ACTIVATION_CHECKPOINTING", kFsdp, "fsdp_activation_checkpointing"},
    Variable{"FSDP_IGNORED_MODULES", kFsdp, "fsdp_ignored_modules"},
    Variable{"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", kMesh, "parallelism_config_dp_replicate_size"},
    Variable{"PARALLELISM_CONFIG_DP_SHARD_SIZE", kMesh, "parallelism_config_dp_shard_size"},
    Variable{"PARALLELISM_CONFIG_TP_SIZE", kMesh, "parallelism_config_tp_size"},
    Variable{"PARALLELISM_CONFIG_CP_SIZE", kMesh, "parallelism_config_cp_size"},
    Variable{"PARALLELISM_CONFIG_SP_SIZE", kMesh, "parallelism_config_sp_size"},
    Variable{"ACCELERATE_DEEPSPEED_ZERO_STAGE", kDeepSpeed, "zero_stage"},
    Variable{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", kDeepSpeed,
             "offload_optimizer_device"},
    Variable{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", kDeepSpeed, "offload_param_device"},
    Variable{"ACCELERATE_DEEPSPEED_CONFIG_FILE", kDeepSpeed, "deepspeed_config_file"},
    Variable{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", kDeepSpeed, "gradient_accumulation_steps"},
    Variable{"ACCELERATE_GRADIENT_CLIPPING", kDeepSpeed, "gradient_clipping"},
};

constexpr const char* kPath = "environment";

std::string text_of(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

bool is_on(const Environment& environment, const char* name) {
  const std::string text = foreign::lower(text_of(environment, name));
  return text == "true" || text == "1" || text == "yes";
}

Node scalar(const std::string& text) { return {.scalar = text, .text = text}; }

Node& child(Node& map, const char* key) {
  for (Node::Member& member : map.members) {
    if (member.key == key) return member.value;
  }
  map.members.push_back({.key = key, .value = {.kind = Node::Kind::kMap}});
  return map.members.back().value;
}

/// The file that the launcher may have read. Sections that are switched off were not exported.
Node as_file(const Environment& environment) {
  Node root{.kind = Node::Kind::kMap};
  const bool fsdp = is_on(environment, "ACCELERATE_USE_FSDP");
  const bool deepspeed = is_on(environment, "ACCELERATE_USE_DEEPSPEED");
  const bool mesh = is_on(environment, "ACCELERATE_USE_PARALLELISM_CONFIG");
  if (fsdp || deepspeed) {
    root.members.push_back(
        {.key = "distributed_type", .value = scalar(fsdp ? "FSDP" : "DEEPSPEED")});
  }
  for (const Variable& variable : kVariables) {
    const std::string_view section = variable.section;
    const bool on = section == kFsdp        ? fsdp
                    : section == kMesh      ? mesh
                    : section == kDeepSpeed ? deepspeed
                                            : true;
    const std::string text = text_of(environment, variable.name);
    if (!on || text.empty()) continue;
    Node& map = section.empty() ? root : child(root, variable.section);
    map.members.push_back({.key = variable.key, .value = scalar(text)});
  }
  return root;
}

/// Puts the variable's name where a file would have a path, so that messages name it.
void name_variables(ConfigTranslation& translation) {
  for (ConfigEntry& entry : translation.entries) {
    for (const Variable& variable : kVariables) {
      const std::string_view section = variable.section;
      const std::string key = section.empty() ? variable.key : concat(section, ".", variable.key);
      if (entry.key == key && entry.file == kPath && !entry.value.is_null()) {
        entry.file = concat(kPath, ": ", variable.name);
      }
    }
  }
}

}  // namespace

std::optional<ConfigTranslation> translate_environment(const Environment& environment,
                                                       const TranslationContext& context) {
  const foreign::Document document{.path = kPath, .root = as_file(environment)};
  if (document.root.members.empty()) return std::nullopt;
  ConfigTranslation translation{.path = kPath, .dialect = ConfigDialect::kAccelerate};
  foreign::translate_accelerate(document, foreign::AccelerateSource::kEnvironment, context,
                                translation);
  foreign::check_complete(translation);
  name_variables(translation);
  return translation;
}

std::optional<std::string> default_accelerate_path(const Environment& environment) {
  namespace fs = std::filesystem;
  const std::string hugging_face = text_of(environment, "HF_HOME");
  const std::string cache = text_of(environment, "XDG_CACHE_HOME");
  const std::string home = text_of(environment, "HOME");
  fs::path folder;
  if (!hugging_face.empty()) {
    folder = hugging_face;
  } else if (!cache.empty()) {
    folder = fs::path(cache) / "huggingface";
  } else if (!home.empty()) {
    folder = fs::path(home) / ".cache" / "huggingface";
  } else {
    return std::nullopt;
  }
  return (folder / "accelerate" / "default_config.yaml").string();
}

std::optional<std::string> default_accelerate_config(const Environment& environment) {
  const auto yaml = default_accelerate_path(environment);
  if (!yaml) return std::nullopt;
  const auto json = std::filesystem::path(*yaml).replace_extension(".json").string();
  for (const std::string& path : {*yaml, json}) {  // in Accelerate's order
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) return path;
  }
  return std::nullopt;
}

}  // namespace tessera
