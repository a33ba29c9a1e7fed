// Holds our reading of Accelerate's files to Accelerate's own, as make_accelerate_golden.py has
// recorded it: every setting that the record tells of, in every file. Where we differ by design,
// the difference stands in kDifferences, with both values, and our translation must say so.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tessera/trainer/config.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// By file, by setting: [ours, Accelerate's]. "refused": Accelerate does not take the file at all.
constexpr const char* kDifferences = R"json({
 "accelerate_anchor_and_merge.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_activation_checkpointing.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_backward_prefetch_number_3.yaml": {"refused": "ValueError: 3 is not a valid BackwardPrefetch"},
 "accelerate_fsdp1_forward_prefetch.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_hybrid_two_machines.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_loading_without_sync.yaml": {"refused": "ValueError: When using `--fsdp_cpu_ram_efficient_loading` set `--fsdp_sync_module_states` to `True`"},
 "accelerate_fsdp1_questionnaire_shard_grad_op.yaml": {"strategy": ["shard_grad_op", "full_shard"]},
 "accelerate_fsdp1_quoted_booleans.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_reshard_is_boolean.yaml": {"strategy": ["shard_grad_op", "full_shard"]},
 "accelerate_fsdp1_size_based_wrap_default_size.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_size_based_wrap_exponent.yaml": {"refused": "ValueError: invalid literal for int() with base 10: '1e6'"},
 "accelerate_fsdp1_size_zero_is_no_wrap.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_strategy_lower_case.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_strategy_number_1.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_strategy_number_2.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_strategy_number_3.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_strategy_number_4.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_strategy_number_5.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_two_layer_classes.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_unprefixed_keys.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_wrap_absent.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_fsdp1_wrap_number.yaml": {"refused": "ValueError: Invalid auto wrap policy: 1. Must be one of ['TRANSFORMER_BASED_WRAP', 'SIZE_BASED_WRAP', 'NO_WRAP']"},
 "accelerate_fsdp2_forward_prefetch_on_cpu.yaml": {"device": ["cpu", "any"]},
 "accelerate_fsdp2_mesh_replicate_only.yaml": {"refused": "ValueError: FSDP is enabled but the parallelism config has no dimension for FSDP to shard across (both `dp_shard_size` and `cp_size` are 1). This usually means a model that is already parallelized another way -- e.g. loaded with `DistributedConfig(tp_size=N)` or `enable_expert_parallel=True`, which makes the whole world size tensor/expert parallel -- was launched under an FSDP config. Either launch it without the FSDP config, or leave ranks for FSDP to use by lowering `tp_size`."},
 "accelerate_fsdp2_mesh_unprefixed.yaml": {"strategy": ["hybrid_shard", "full_shard"], "replicas": [2, 1]},
 "accelerate_fsdp2_no_prefetch.yaml": {"prefetch_backward": [0, 1]},
 "accelerate_fsdp2_strategy_only.yaml": {"strategy": ["shard_grad_op", "full_shard"]},
 "accelerate_ipex.yaml": {"refused": "ValueError: The config file at accelerate_ipex.yaml had unknown keys (['ipex_config']), please try upgrading your `accelerate` version or fix (and potentially remove) these keys from your config file."},
 "accelerate_legacy_2022.yaml": {"prefetch_backward": [1, 0]},
 "accelerate_machines_on_one.yaml": {"ranks": [4, 1]},
 "accelerate_multi_cpu.yaml": {"ranks": [2, 1]},
 "accelerate_nulls.yaml": {"refused": "TypeError: '>' not supported between instances of 'NoneType' and 'int'"},
 "accelerate_precision_no_without_quotes.yaml": {"refused": "AttributeError: 'bool' object has no attribute 'lower'"},
 "accelerate_type_in_small_letters.yaml": {"refused": "ValueError: 'multi_gpu' is not a valid DistributedType"}
})json";

fs::path here() { return fs::path(TESSERA_SOURCE_DIR) / "tests" / "configs"; }

json read_json(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  return json::parse(file);
}

std::string text(const json& environment, const char* name) {
  return environment.value(name, std::string());
}

// What a record says in our words, setting by setting. What it does not tell is left out.

void tell_launch(const json& record, json& settings) {
  const json& environment = record["environment"];
  settings["ranks"] = record["processes"];
  settings["device"] = text(environment, "ACCELERATE_USE_CPU") == "True" ? "cpu" : "any";
  settings["check_collectives"] = text(environment, "ACCELERATE_DEBUG_MODE") == "true";
  // With a file of DeepSpeed's own the precision is in there, which no launcher reads.
  if (environment.contains("ACCELERATE_DEEPSPEED_CONFIG_FILE")) return;
  const std::string precision = text(environment, "ACCELERATE_MIXED_PRECISION");
  settings["precision"] = precision == "no" ? "fp32" : precision;
}

void tell_fsdp_strategy(const json& record, json& settings) {
  const json& fsdp = record["fsdp"];
  const json& environment = record["environment"];
  if (fsdp["version"] == 1) {
    const std::map<std::string, std::string> names{{"FULL_SHARD", "full_shard"},
                                                   {"SHARD_GRAD_OP", "shard_grad_op"},
                                                   {"NO_SHARD", "no_shard"},
                                                   {"HYBRID_SHARD", "hybrid_shard"},
                                                   {"_HYBRID_SHARD_ZERO2", "hybrid_shard_zero2"}};
    settings["strategy"] = names.at(fsdp["sharding_strategy"]);
    return;
  }
  const bool reshard = fsdp["reshard_after_forward"];
  if (!environment.contains("PARALLELISM_CONFIG_DP_SHARD_SIZE")) {
    settings["strategy"] = reshard ? "full_shard" : "shard_grad_op";
    return;
  }
  // What the launcher exports, and so what its worker reads: ones where the file says nothing. A
  // mesh of ones is none.
  const auto replicas = std::stoll(text(environment, "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"));
  settings["replicas"] = replicas;
  settings["strategy"] = replicas > 1 ? (reshard ? "hybrid_shard" : "hybrid_shard_zero2")
                                      : (reshard ? "full_shard" : "shard_grad_op");
}

void tell_fsdp(const json& record, json& settings) {
  const json& fsdp = record["fsdp"];
  tell_fsdp_strategy(record, settings);
  const bool ahead = fsdp["version"] == 2 || fsdp["backward_prefetch"] == "BACKWARD_PRE";
  settings["prefetch_backward"] = ahead ? 1 : 0;
  if (fsdp["forward_prefetch"] == true) settings["prefetch_forward"] = 1;
  settings["recompute"] = fsdp["activation_checkpointing"] == true ? "full" : "none";
  settings["reduce_dtype"] = fsdp["reduce_dtype"] == "torch.bfloat16" ? "bf16" : "fp32";
  settings["wrap"] = "none";
  if (fsdp["auto_wrap_policy"] == "transformer_auto_wrap_policy") settings["wrap"] = "layer";
  if (fsdp["auto_wrap_policy"] == "size_based_auto_wrap_policy" && fsdp["min_num_params"] != 0) {
    settings["wrap"] = "size:" + fsdp["min_num_params"].dump();
  }
}

void tell_deepspeed(const json& environment, json& settings) {
  const std::map<std::string, std::string> strategies{
      {"0", "no_shard"}, {"1", "zero1"}, {"2", "zero2"}, {"3", "full_shard"}};
  const std::string stage = text(environment, "ACCELERATE_DEEPSPEED_ZERO_STAGE");
  if (strategies.contains(stage)) settings["strategy"] = strategies.at(stage);
  const std::string steps = text(environment, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  if (!steps.empty() && steps != "auto") settings["accumulate"] = std::stoll(steps);
  const std::string norm = text(environment, "ACCELERATE_GRADIENT_CLIPPING");
  if (!norm.empty() && norm != "auto") settings["clip_norm"] = std::stod(norm);
}

json told_by(const json& record) {
  json settings;
  tell_launch(record, settings);
  if (record.contains("fsdp")) {
    tell_fsdp(record, settings);
  } else if (record["environment"].contains("ACCELERATE_USE_DEEPSPEED")) {
    tell_deepspeed(record["environment"], settings);
  } else {
    settings["strategy"] = "no_shard";
  }
  return settings;
}

Config read(const std::string& name) {
  Config ours(trainer_settings());
  const json expected = read_json(name + ".expected.json");
  const json arguments = expected.value("arguments", json::object());
  for (const auto& [flag, value] : arguments.items()) {
    ours.set_text(flag, value.get<std::string>());
  }
  ours.read_file(name);
  return ours;
}

/// As told_by() has it, if our device may be any.
json ours_in(const Config& ours, const std::string& setting) {
  if (setting == "device" && ours.values()[setting] != "cpu") return "any";
  return ours.values()[setting];
}

/// True if an entry that gives `setting` says what Accelerate does.
bool says_a_difference(const Config& ours, const std::string& setting) {
  for (const ConfigEntry& entry : ours.translations().at(0).entries) {
    const bool said = !entry.difference.empty() || (entry.announce && !entry.note.empty());
    if (said && entry.settings.contains(setting)) return true;
  }
  return false;
}

/// True if an entry says that Accelerate does not take the file.
bool says_that_it_is_refused(const Config& ours) {
  for (const ConfigEntry& entry : ours.translations().at(0).entries) {
    for (const char* words :
         {"Accelerate refuses", "Accelerate stops", "Accelerate 1.15 refuses"}) {
      if (entry.difference.find(words) != std::string::npos) return true;
    }
  }
  return false;
}

TEST(AccelerateGolden, WeReadFilesAsAccelerateDoesOrSayWhereWeDoNot) {
  const json golden = read_json(here() / "accelerate_golden.json");
  const fs::path before = fs::current_path();
  fs::current_path(here() / "corpus");
  json differences = json::object();
  for (const auto& [name, record] : golden["files"].items()) {
    SCOPED_TRACE(name);
    const Config ours = read(name);
    if (record.contains("refused")) {
      differences[name]["refused"] = record["refused"];
      EXPECT_TRUE(says_that_it_is_refused(ours));
      continue;
    }
    const json told = told_by(record);
    for (const auto& [setting, theirs] : told.items()) {
      const json mine = ours_in(ours, setting);
      if (mine == theirs) continue;
      differences[name][setting] = {mine, theirs};
      EXPECT_TRUE(says_a_difference(ours, setting)) << setting;
    }
  }
  fs::current_path(before);
  EXPECT_GE(golden["files"].size(), 50U);
  EXPECT_EQ(differences.dump(1), json::parse(kDifferences).dump(1));
}

}  // namespace
}  // namespace tessera
