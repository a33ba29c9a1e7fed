// Holds our reading of Accelerate's files to Accelerate's own, as make_accelerate_golden.py has
// recorded it. Where we differ by design, our translation must say so.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "tessera/trainer/config.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path here() { return fs::path(TESSERA_SOURCE_DIR) / "tests" / "configs"; }

json read_json(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  return json::parse(file);
}

/// One file, read by both.
struct Both {
  Config ours{trainer_settings()};
  json theirs;

  std::string environment(const char* name) const {
    return theirs["environment"].value(name, std::string());
  }
  /// True if some entry that gives `setting` tells of a difference.
  bool said(const std::string& setting) const {
    for (const ConfigEntry& entry : ours.translations().at(0).entries) {
      if (entry.settings.contains(setting) && !(entry.difference.empty() && !entry.announce)) {
        return true;
      }
    }
    return false;
  }
  void expect(const std::string& setting, const json& value) const {
    if (json(ours.values()[setting]) != value) {
      EXPECT_TRUE(said(setting)) << setting << " is " << ours.values()[setting] << ", not "
                                 << value;
    }
  }
};

void compare_fsdp(const Both& both) {
  const json& fsdp = both.theirs["fsdp"];
  const bool version_2 = fsdp["version"] == 2;
  const bool mesh = both.theirs["environment"].contains("PARALLELISM_CONFIG_DP_REPLICATE_SIZE");
  if (!version_2) {
    std::string strategy = fsdp["sharding_strategy"];
    std::transform(strategy.begin(), strategy.end(), strategy.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    both.expect("strategy", strategy);
    const json prefetch = fsdp["backward_prefetch"];
    both.expect("prefetch_backward", prefetch.is_null() || prefetch != "BACKWARD_PRE" ? 0 : 1);
  } else if (!mesh) {
    both.expect("strategy", fsdp["reshard_after_forward"] == true ? "full_shard" : "shard_grad_op");
  } else {
    const auto replicas = std::stoll(both.environment("PARALLELISM_CONFIG_DP_REPLICATE_SIZE"));
    const auto shard = std::stoll(both.environment("PARALLELISM_CONFIG_DP_SHARD_SIZE"));
    if (both.said("replicas")) return;  // keys that Accelerate did not see
    both.expect("strategy", shard == 1 ? "no_shard" : replicas > 1 ? "hybrid_shard" : "full_shard");
    if (shard > 1) both.expect("replicas", replicas);
  }
  both.expect("recompute", fsdp["activation_checkpointing"] == true ? "full" : "none");
  const std::string policy = both.environment("FSDP_AUTO_WRAP_POLICY");
  if (policy == "TRANSFORMER_BASED_WRAP") both.expect("wrap", "layer");
  if (policy.empty() || policy == "NO_WRAP") both.expect("wrap", "none");
  if (policy == "SIZE_BASED_WRAP" && fsdp["min_num_params"] != 0) {
    both.expect("wrap", "size:" + fsdp["min_num_params"].dump());
  }
}

void compare_deepspeed(const Both& both) {
  const std::string stage = both.environment("ACCELERATE_DEEPSPEED_ZERO_STAGE");
  const std::map<std::string, std::string> strategies{
      {"0", "no_shard"}, {"1", "zero1"}, {"2", "zero2"}, {"3", "full_shard"}};
  if (strategies.contains(stage)) both.expect("strategy", strategies.at(stage));
  const std::string steps = both.environment("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  if (!steps.empty() && steps != "auto") both.expect("accumulate", std::stoll(steps));
  const std::string norm = both.environment("ACCELERATE_GRADIENT_CLIPPING");
  if (!norm.empty() && norm != "auto") both.expect("clip_norm", std::stod(norm));
}

TEST(AccelerateGolden, WeReadFilesAsAccelerateDoes) {
  const json golden = read_json(here() / "accelerate_golden.json");
  const fs::path before = fs::current_path();
  fs::current_path(here() / "corpus");
  int compared = 0;
  for (const auto& [name, theirs] : golden["files"].items()) {
    SCOPED_TRACE(name);
    const json expected = read_json(name + ".expected.json");
    const json arguments = expected.value("arguments", json::object());
    Both both{.theirs = theirs};
    for (const auto& [flag, value] : arguments.items()) {
      both.ours.set_text(flag, value.get<std::string>());
    }
    both.ours.read_file(name);
    if (theirs.contains("refused")) continue;  // we may accept more
    ++compared;
    both.expect("ranks", theirs["num_processes"]);
    const std::string precision = both.environment("ACCELERATE_MIXED_PRECISION");
    if (!theirs["environment"].contains("ACCELERATE_DEEPSPEED_CONFIG_FILE")) {
      both.expect("precision", precision == "bf16" ? "bf16" : "fp32");
    }
    if (theirs.contains("fsdp")) compare_fsdp(both);
    if (theirs["environment"].contains("ACCELERATE_USE_DEEPSPEED")) compare_deepspeed(both);
  }
  fs::current_path(before);
  EXPECT_GE(compared, 30);
}

}  // namespace
}  // namespace tessera
