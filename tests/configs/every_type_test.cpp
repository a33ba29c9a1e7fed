// Every key of every table with values of every type of JSON: each is accepted with a meaning, or
// refused with the names of file and key.
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "tessera/compat/config.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::every_type_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Key {
  std::string name;
  std::string type;  // of KeyType
};

/// The keys of the tables in *_keys.cpp, by section.
std::map<std::string, std::vector<Key>> tables() {
  static const std::regex kItem(
      R"re(\{"([^"]+)", \{\n|(?:used|quiet|said|refused)\("(\w+)", k(\w+))re");
  std::map<std::string, std::vector<Key>> result;
  for (const auto& entry :
       fs::directory_iterator(fs::path(TESSERA_SOURCE_DIR) / "runtime/compat/src")) {
    if (!entry.path().filename().string().ends_with("_keys.cpp")) continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::string table;
    for (std::sregex_iterator item(text.begin(), text.end(), kItem), end; item != end; ++item) {
      if ((*item)[1].matched) {
        table = (*item)[1];
      } else {
        result[table].push_back({(*item)[2], (*item)[3]});
      }
    }
  }
  return result;
}

/// A file in which a table's keys can stand, and the section where they do.
struct Place {
  const char* table;
  const char* around;
  const char* section;  // a JSON pointer
};

const std::vector<Place>& places() {
  constexpr const char* kFsdp = R"({"distributed_type": "FSDP", "num_processes": 4})";
  constexpr const char* kFsdp2 =
      R"({"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": {"fsdp_version": 2}})";
  constexpr const char* kByDeepSpeed = R"({"distributed_type": "DEEPSPEED", "num_processes": 4})";
  constexpr const char* kMegatron = R"({"distributed_type": "MEGATRON_LM", "num_processes": 4})";
  constexpr const char* kDdp = R"({"distributed_type": "MULTI_CPU", "num_processes": 4})";
  constexpr const char* kTorchao =
      R"({"distributed_type": "MULTI_CPU", "num_processes": 4, "mixed_precision": "fp8",
          "fp8_config": {"backend": "AO"}})";
  constexpr const char* kTransformerEngine =
      R"({"distributed_type": "MULTI_CPU", "num_processes": 4, "mixed_precision": "fp8",
          "fp8_config": {"backend": "TE"}})";
  constexpr const char* kDeepSpeed = R"({"train_batch_size": 8})";
  constexpr const char* kDecay =
      R"({"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR",
          "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}})";
  constexpr const char* kCosine =
      R"({"train_batch_size": 8, "scheduler": {"type": "WarmupCosineLR",
          "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}})";
  static const std::vector<Place> all{
      {"accelerate", kFsdp, ""},
      {"accelerate", kByDeepSpeed, ""},
      {"accelerate", kDdp, ""},
      {"fsdp_config", kFsdp, "/fsdp_config"},
      {"fsdp_config", kFsdp2, "/fsdp_config"},
      {"parallelism_config", kFsdp2, "/parallelism_config"},
      {"parallelism_config", kDdp, "/parallelism_config"},
      {"deepspeed_config", kByDeepSpeed, "/deepspeed_config"},
      {"megatron_lm_config", kMegatron, "/megatron_lm_config"},
      {"dynamo_config", kDdp, "/dynamo_config"},
      {"fp8_config", kTorchao, "/fp8_config"},
      {"fp8_config", kTransformerEngine, "/fp8_config"},
      {"mpirun_config", kDdp, "/mpirun_config"},
      {"deepspeed", kDeepSpeed, ""},
      {"zero_optimization", kDeepSpeed, "/zero_optimization"},
      {"zero_optimization.offload_optimizer", kDeepSpeed, "/zero_optimization/offload_optimizer"},
      {"zero_optimization.offload_param", kDeepSpeed, "/zero_optimization/offload_param"},
      {"bf16", kDeepSpeed, "/bf16"},
      {"fp16", kDeepSpeed, "/fp16"},
      {"optimizer", R"({"train_batch_size": 8, "optimizer": {"type": "AdamW"}})", "/optimizer"},
      {"optimizer.params", R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}})",
       "/optimizer/params"},
      {"scheduler", R"({"train_batch_size": 8, "scheduler": {"type": "WarmupLR"}})", "/scheduler"},
      {"scheduler.params", R"({"train_batch_size": 8, "scheduler": {"type": "WarmupLR"}})",
       "/scheduler/params"},
      {"scheduler.params", kDecay, "/scheduler/params"},
      {"scheduler.params", kCosine, "/scheduler/params"},
      {"activation_checkpointing", kDeepSpeed, "/activation_checkpointing"},
      {"tensor_parallel", kDeepSpeed, "/tensor_parallel"},
      {"data_types", kDeepSpeed, "/data_types"},
      {"checkpoint", kDeepSpeed, "/checkpoint"},
      {"tensorboard, csv_monitor", R"({"train_batch_size": 8, "tensorboard": {"enabled": true}})",
       "/tensorboard"},
      {"tensorboard, csv_monitor", R"({"train_batch_size": 8, "csv_monitor": {"enabled": true}})",
       "/csv_monitor"},
  };
  return all;
}

constexpr const char* kHuge = "1e400";  // no number of JSON's library: stands in texts only

std::vector<std::string> values() {
  return {"null",        "true",   "false",     "0",
          "-1",          "1",      "0.5",       "1e300",
          kHuge,         "\"\"",   "\"x\"",     "\"auto\"",
          "\"true\"",    "\"-1\"", "\"1e400\"", "\"" + std::string(20'000, 'y') + "\"",
          "[]",          "{}",     "[[]]",      "[1, 2]",
          R"({"a": {}})"};
}

/// Values that a key of the type can never have.
bool must_be_refused(const std::string& type, const std::string& value) {
  const bool list = value.front() == '[';
  const bool structured = list || value.front() == '{';
  const bool flag = value == "true" || value == "false";
  if (type == "Flag") return structured || value == "\"\"" || value == "\"x\"" || value == "0.5";
  if (type == "Integer") return structured || flag || value == "\"\"" || value == "0.5";
  if (type == "Number") return structured || flag || value == "\"\"" || value == "\"x\"";
  if (type == "Text") return structured;
  if (type == "Section") return list || value == "0.5" || value == "\"\"";
  return value == kHuge;
}

class EveryType : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("tessera_types_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static Config make_config() {
    std::vector<Setting> table = trainer_settings();
    for (Setting& setting : output_settings()) table.push_back(std::move(setting));
    table.push_back(state_dict_setting());
    return Config(std::move(table));
  }

  /// The error, or nothing if the file is accepted.
  std::string outcome(const std::string& name, const std::string& text) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    Config config = config_;
    try {
      config.read_file(path);
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(error.code(), ErrorCode::kConfig) << what;
      EXPECT_NE(what.find(path), std::string::npos) << what;
      EXPECT_LT(what.size(), 4000U) << what.substr(0, 1000);
      return what;
    }
    for (const ConfigEntry& entry : config.translations().at(0).entries) {
      EXPECT_TRUE(entry.outcome.has_value()) << entry.key;
    }
    try {
      static_cast<void>(trainer_options(config));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
    }
    return "";
  }

  void check(const std::string& name, const std::string& key, const std::string& type,
             const std::string& value, const std::string& text) {
    SCOPED_TRACE(key + ": " + value.substr(0, 20) + " in " + text.substr(0, 100));
    const std::string error = outcome(name, text);
    if (must_be_refused(type, value)) {
      EXPECT_NE(error, "") << "a " << type << " was accepted";
    }
    const bool named = error.find(key) != std::string::npos ||
                       (key.find("batch") != key.npos && error.find("batch") != error.npos);
    EXPECT_TRUE(error.empty() || named) << error.substr(0, 1000);
  }

  fs::path folder_;
  Config config_ = make_config();
};

constexpr const char* kMark = "\"@value@\"";

std::string with_value(std::string text, const std::string& value) {
  const std::size_t at = text.find(kMark);
  return text.replace(at, std::string(kMark).size(), value);
}

/// One key to a line, each value as in JSON.
std::string as_yaml(const ordered_json& root) {
  std::string text;
  for (const auto& [key, value] : root.items()) text += key + ": " + value.dump() + "\n";
  return text;
}

TEST_F(EveryType, OfForeignKeysIsAcceptedWithAMeaningOrRefusedByName) {
  const auto all = tables();
  std::map<std::string, int> seen;
  for (const Place& place : places()) {
    ASSERT_TRUE(all.contains(place.table)) << place.table;
    const bool first = ++seen[place.table] == 1;
    const bool in_yaml =
        first && std::string(place.around).find("distributed_type") != std::string::npos;
    for (const Key& key : all.at(place.table)) {
      ordered_json root = ordered_json::parse(place.around);
      root[ordered_json::json_pointer(place.section)][key.name] = "@value@";
      for (const std::string& value : values()) {
        check("a.json", key.name, key.type, value, with_value(root.dump(), value));
        if (!in_yaml) continue;
        if (value == kHuge && key.type != "Integer" && key.type != "Number") continue;  // a word
        check("a.yaml", key.name, key.type, value, with_value(as_yaml(root), value));
      }
    }
  }
  for (const auto& [table, keys] : all) EXPECT_GT(seen[table], 0) << table;
}

TEST_F(EveryType, OfOurKeysIsAcceptedWithAMeaningOrRefusedByName) {
  const std::map<SettingType, std::string> types{{SettingType::kFlag, "Flag"},
                                                 {SettingType::kInteger, "Integer"},
                                                 {SettingType::kNumber, "Number"},
                                                 {SettingType::kText, "Text"},
                                                 {SettingType::kBytes, "Integer"}};
  for (const Setting& setting : config_.table()) {
    const ordered_json root{{setting.name, "@value@"}};
    for (const std::string& value : values()) {
      check("a.json", setting.name, types.at(setting.type), value, with_value(root.dump(), value));
    }
  }
}

TEST_F(EveryType, ManyKeysTakeNoTime) {
  constexpr int kKeys = 49'000;
  std::string unknown = "distributed_type: FSDP\n";
  std::string empty = unknown;
  for (int i = 0; i < kKeys; ++i) {
    unknown += "key_" + std::to_string(i) + ": 1\n";
    empty += "key_" + std::to_string(i) + ":\n";
  }
  std::string own = "ranks: 2\n" + unknown.substr(unknown.find('\n') + 1);
  for (const std::string& text : {unknown, empty, own}) {
    const std::clock_t before = std::clock();
    const std::string error = outcome("many.yaml", text);
    const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    EXPECT_TRUE(std::regex_search(error, std::regex("and 4898[01] more"))) << error.substr(0, 300);
    // The parser itself takes most of it; comparing each key with each would take a minute.
    EXPECT_LT(seconds, 20.0);
  }
}

}  // namespace
}  // namespace tessera::every_type_test
