// Holds our reading of Accelerate's files to Accelerate's own, as make_accelerate_golden.py has
// recorded it: every setting that the record tells of, in every file. Where we differ by design,
// the file's expectation names the setting ("unlike_accelerate"; "refused" if Accelerate does not
// take the file at all), and our translation must say so.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tessera/compat/config.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::golden_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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

/// A plugin without recompute_activations says that Accelerate hands them to nobody.
void tell_megatron(const json& megatron, json& settings) {
  settings["pipeline"] = megatron["pipeline_model_parallel_size"];
  settings["accumulate"] = megatron["num_micro_batches"];
  settings["clip_norm"] = megatron["clip_grad"];
  settings["strategy"] = megatron["use_distributed_optimizer"] == true ? "zero1" : "no_shard";
  settings["recompute"] = megatron["recompute_granularity"];
  settings["offload_optimizer"] = megatron["optimizer_cpu_offload"] == true ? "host" : "none";
  const json& last = megatron["decoder_last_pipeline_num_layers"];
  if (!last.is_null()) settings["last_rank_layers"] = last;
}

json told_by(const json& record) {
  json settings;
  tell_launch(record, settings);
  if (record.contains("fsdp")) {
    tell_fsdp(record, settings);
  } else if (record.contains("megatron")) {
    tell_megatron(record["megatron"], settings);
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
  for (const auto& [name, record] : golden["files"].items()) {
    SCOPED_TRACE(name);
    const Config ours = read(name);
    const json by_design =
        read_json(name + ".expected.json").value("unlike_accelerate", json::array());
    if (record.contains("refused")) {
      EXPECT_EQ(by_design, json::array({"refused"})) << record["refused"];
      EXPECT_TRUE(says_that_it_is_refused(ours));
      continue;
    }
    const json told = told_by(record);
    json differences = json::array();
    for (const auto& [setting, theirs] : told.items()) {
      const json mine = ours_in(ours, setting);
      if (mine == theirs) continue;
      differences.push_back(setting);
      EXPECT_TRUE(says_a_difference(ours, setting)) << setting;
    }
    EXPECT_EQ(differences, by_design) << "Accelerate has " << told;
  }
  fs::current_path(before);
  EXPECT_GE(golden["files"].size(), 50U);
}

}  // namespace
}  // namespace tessera::golden_test
