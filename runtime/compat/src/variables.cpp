#include "variables.h"

#include <algorithm>
#include <array>

#include "document.h"
#include "keys.h"

namespace tessera::compat {
namespace {

constexpr const char* kFsdp = "fsdp_config";
constexpr const char* kMesh = "parallelism_config";
constexpr const char* kDeepSpeed = "deepspeed_config";
constexpr const char* kDynamo = "dynamo_config";
constexpr const char* kMegatronLm = "megatron_lm_config";
constexpr const char* kFp8 = "fp8_config";

/// FSDP_*, PARALLELISM_CONFIG_* and MEGATRON_LM_* are the keys in capitals.
void add_capitals(const char* section, std::vector<Variable>& table) {
  for (const KeyRule& rule : table_of(section).rules) {
    const auto named = [&](const Variable& v) {
      return v.section == section && v.key == rule.name;
    };
    if (std::ranges::any_of(table, named)) continue;
    table.push_back({.name = upper(rule.name), .section = section, .key = rule.name});
  }
}

std::vector<Variable> make_variables() {
  std::vector<Variable> table{
      {"ACCELERATE_MIXED_PRECISION", "", "mixed_precision"},
      {"ACCELERATE_DEBUG_MODE", "", "debug", true},
      {"ACCELERATE_USE_CPU", "", "use_cpu", true},
      {"ACCELERATE_CPU_AFFINITY", "", "enable_cpu_affinity", true},
      {"ACCELERATE_DYNAMO_BACKEND", kDynamo, "dynamo_backend"},
      {"ACCELERATE_DYNAMO_MODE", kDynamo, "dynamo_mode"},
      {"ACCELERATE_DYNAMO_USE_FULLGRAPH", kDynamo, "dynamo_use_fullgraph"},
      {"ACCELERATE_DYNAMO_USE_DYNAMIC", kDynamo, "dynamo_use_dynamic"},
      {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", kDynamo, "dynamo_use_regional_compilation"},
      {"FSDP_TRANSFORMER_CLS_TO_WRAP", kFsdp, "fsdp_transformer_layer_cls_to_wrap"},
      {"ACCELERATE_DEEPSPEED_ZERO_STAGE", kDeepSpeed, "zero_stage"},
      {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", kDeepSpeed, "gradient_accumulation_steps"},
      {"ACCELERATE_GRADIENT_CLIPPING", kDeepSpeed, "gradient_clipping"},
      {kDeepSpeedFile, kDeepSpeed, "deepspeed_config_file"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", kDeepSpeed, "offload_optimizer_device"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", kDeepSpeed, "offload_param_device"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", kDeepSpeed,
       "offload_optimizer_nvme_path"},
      {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", kDeepSpeed, "offload_param_nvme_path"},
      {"ACCELERATE_DEEPSPEED_ZERO3_INIT", kDeepSpeed, "zero3_init_flag"},
      {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", kDeepSpeed, "zero3_save_16bit_model"},
      {"ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", kDeepSpeed, "deepspeed_moe_layer_cls_names"},
  };
  for (const char* const section : {kFsdp, kMesh, kMegatronLm}) add_capitals(section, table);
  for (const KeyRule& rule : table_of(kFp8).rules) {
    table.push_back(
        {.name = concat("ACCELERATE_", upper(rule.name)), .section = kFp8, .key = rule.name});
  }
  return table;
}

}  // namespace

const std::vector<Variable>& variables() {
  static const std::vector<Variable> table = make_variables();
  return table;
}

const std::vector<SectionSwitch>& section_switches() {
  static const std::vector<SectionSwitch> table{
      {kFsdp, "ACCELERATE_USE_FSDP", "FSDP"},
      {kDeepSpeed, "ACCELERATE_USE_DEEPSPEED", "DEEPSPEED"},
      {kMegatronLm, "ACCELERATE_USE_MEGATRON_LM", "MEGATRON_LM"},
      {kMesh, "ACCELERATE_USE_PARALLELISM_CONFIG"},
  };
  return table;
}

std::string full_path(const std::string& spelt) {
  // The one key of a section that may also stand at the top.
  if (spelt == "dynamo_backend") return concat(kDynamo, ".", spelt);
  const std::size_t dot = std::min(spelt.find('.'), spelt.size() - 1);
  for (const KeyTable& table : accelerate_key_tables()) {
    if (spelt.substr(0, dot) != table.section) continue;
    const std::string key = spelt.substr(dot + 1);
    return concat(table.section, ".", key.starts_with(table.prefix) ? "" : table.prefix, key);
  }
  const auto named = [&](const Variable& variable) { return variable.name == spelt; };
  const auto variable = std::ranges::find_if(variables(), named);
  return variable == variables().end() ? spelt : variable->path();
}

const std::vector<std::string_view>& variables_without_effect() {
  static const std::vector<std::string_view> names{"ACCELERATE_LOG_LEVEL",
                                                   "ACCELERATE_DISABLE_RICH",
                                                   "ACCELERATE_ENABLE_RICH",
                                                   "ACCELERATE_TORCH_DEVICE",
                                                   "ACCELERATE_DOWNCAST_BF16",
                                                   "ACCELERATE_BYPASS_DEVICE_MAP",
                                                   "ACCELERATE_USE_XPU",
                                                   "ACCELERATE_USE_IPEX",
                                                   "ACCELERATE_USE_SAGEMAKER",
                                                   "ACCELERATE_CONFIG_DS_FIELDS",
                                                   "ACCELERATE_ALLOW_CP_STANDALONE"};
  return names;
}

bool is_accelerates(std::string_view name) {
  constexpr std::array<std::string_view, 4> kPrefixes{"ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_",
                                                      "MEGATRON_LM_"};
  return std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace tessera::compat
