#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>

#include "tessera/compat/config.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class Variables {
 public:
  explicit Variables(std::map<std::string, std::string> values) : values_(std::move(values)) {}
  Environment get() const {
    return [this](const char* name) -> const char* {
      const auto found = values_.find(name);
      return found == values_.end() ? nullptr : found->second.c_str();
    };
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, value] : values_) all.push_back(name);
    return all;
  }

 private:
  std::map<std::string, std::string> values_;
};

class ConfigSources : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("tessera_sources_") + info->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  /// The error of a file that must be refused at once.
  std::string error_of(const std::string& path) {
    const auto begin = std::chrono::steady_clock::now();
    std::string what;
    try {
      Config config(trainer_settings());
      config.read_file(path);
      ADD_FAILURE() << "accepted " << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      what = error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    EXPECT_LT(what.size(), 1000U);
    EXPECT_THAT(what, HasSubstr(path));
    return what;
  }
  fs::path folder_;
};

TEST_F(ConfigSources, HostileFilesAreOneClearErrorEach) {
  const std::string many(10'000'000, 'x');
  EXPECT_THAT(error_of(write("big.yaml", "ranks: " + many)), HasSubstr("longer than 1 MiB"));
  EXPECT_THAT(error_of(folder_.string()), HasSubstr("is a folder"));
  EXPECT_THAT(error_of((folder_ / "none.yaml").string()), HasSubstr("cannot be opened"));
  EXPECT_THAT(error_of(write("zero.yaml", std::string(100, '\0'))), HasSubstr("is not a text"));
  EXPECT_THAT(error_of(write("latin.yaml", "model: caf\xE9\n")), HasSubstr("latin.yaml:1: is not"));
  const std::string deep(900'000, '[');
  EXPECT_THAT(error_of(write("deep.json", "{\"ranks\": " + deep)), HasSubstr("32 levels"));
  EXPECT_THAT(error_of(write("deep.yaml", "ranks: " + deep)), HasSubstr("deep.yaml"));
  std::string wide = "ranks: [";
  for (int i = 0; i < 200'000; ++i) wide += "1,";
  EXPECT_THAT(error_of(write("wide.yaml", wide + "1]\n")), HasSubstr("100000 values"));
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += "k" + std::to_string(i) + ": 1\n";
  EXPECT_THAT(error_of(write("keys.yaml", lines)), HasSubstr("this is no file of Tessera"));
}

TEST_F(ConfigSources, APipeIsNotWaitedFor) {
  const std::string pipe = (folder_ / "pipe.yaml").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_of(pipe), HasSubstr("is a pipe or a device"));
  EXPECT_THAT(error_of("/dev/null"), HasSubstr("is a pipe or a device"));
  // What a shell makes of --config <(command).
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const std::string text = "ranks: 3\n";
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  Config config(trainer_settings());
  config.read_file("/dev/fd/" + std::to_string(ends[0]));
  close(ends[0]);
  EXPECT_EQ(config.get<int>("ranks"), 3);
}

TEST_F(ConfigSources, AKeyOfYamlNeedsItsColon) {
  const std::string begin = "distributed_type: MULTI_CPU\nnum_processes: 2\n";
  for (const char* last : {"debug", "debug\n", "debug   \n\n", "\"debug\"",
                           "fsdp_config:\n  fsdp_version: 2\n  debug\n"}) {
    EXPECT_THAT(error_of(write("a.yaml", begin + last)), HasSubstr("has no colon")) << last;
  }
  for (const char* last :
       {"debug:", "debug: # on\n", "\"debug\":\n", "debug :\n", "? debug\n",
        "mpirun_config: {mpirun_ccl}\n", "gpu_ids: 0,\n  1\n", "debug:\n...\n", "debug: &a\n"}) {
    Config config(trainer_settings());
    EXPECT_NO_THROW(config.read_file(write("a.yaml", begin + last))) << last;
  }
}

TEST_F(ConfigSources, OfAListOfMergedMapsTheFirstCountsMost) {
  const std::string path =
      write("merge.yaml",
            "distributed_type: FSDP\n"
            "num_processes: 2\n"
            "fsdp_config:\n"
            "  <<: [{fsdp_version: 2, fsdp_reshard_after_forward: false,\n"
            "        fsdp_activation_checkpointing: true},\n"
            "       {fsdp_reshard_after_forward: true,\n"
            "        fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 7}]\n"
            "  fsdp_activation_checkpointing: false\n");
  Config config(trainer_settings());
  config.read_file(path);
  EXPECT_EQ(config.get<std::string>("strategy"), "shard_grad_op");
  EXPECT_EQ(config.get<std::string>("wrap"), "size:7");
  EXPECT_EQ(config.get<std::string>("recompute"), "none");
}

TEST_F(ConfigSources, CommandLineWinsOverFileOverEnvironmentOverDefault) {
  const Variables environment({{"ACCELERATE_MIXED_PRECISION", "bf16"},
                               {"ACCELERATE_DEBUG_MODE", "true"},
                               {"ACCELERATE_USE_FSDP", "true"},
                               {"FSDP_SHARDING_STRATEGY", "NO_SHARD"},
                               {"FSDP_ACTIVATION_CHECKPOINTING", "true"}});
  const std::string file = write("c.yaml",
                                 "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n"
                                 "  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
                                 "  fsdp_auto_wrap_policy: NO_WRAP\n");
  // In whatever order they are told.
  for (const bool early : {true, false}) {
    Config config(trainer_settings());
    if (early) config.set_text("ranks", "2");
    config.read_environment(environment.get(), environment.names());
    config.read_file(file);
    if (!early) config.set_text("ranks", "2");
    EXPECT_EQ(config.get<int>("ranks"), 2);
    EXPECT_EQ(config.source("ranks"), "command line");
    EXPECT_EQ(config.get<std::string>("strategy"), "shard_grad_op");
    EXPECT_EQ(config.source("strategy"), file + ":4");
    EXPECT_EQ(config.get<std::string>("wrap"), "none");
    EXPECT_EQ(config.get<std::string>("precision"), "bf16");
    EXPECT_EQ(config.source("precision"), "environment: ACCELERATE_MIXED_PRECISION");
    EXPECT_EQ(config.get<std::string>("recompute"), "full");
    EXPECT_EQ(config.source("recompute"), "environment: FSDP_ACTIVATION_CHECKPOINTING");
    EXPECT_TRUE(config.get<bool>("check_collectives"));
    EXPECT_EQ(config.source("seed"), "default");
  }
}

TEST_F(ConfigSources, WhatAFileAndTheEnvironmentBothSayIsToldOnce) {
  const Variables environment({{"ACCELERATE_USE_FSDP", "true"},
                               {"FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT"},
                               {"FSDP_USE_ORIG_PARAMS", "true"}});
  // The type of state dict is in both, and both lack a wrap policy and a prefetch.
  const std::string file = write("c.yaml",
                                 "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n"
                                 "  state_dict_type: FULL_STATE_DICT\n"
                                 "  fsdp_sync_module_states: true\n");
  Config config(trainer_settings());
  config.read_environment(environment.get(), environment.names());
  config.read_file(file);
  EXPECT_THAT(
      config.announcements(),
      ElementsAre(HasSubstr("environment: without effect here: fsdp_use_orig_params;"),
                  HasSubstr("c.yaml: fsdp_config.fsdp_auto_wrap_policy (absent)"),
                  HasSubstr("c.yaml: fsdp_config.fsdp_backward_prefetch (absent)"),
                  HasSubstr("c.yaml: without effect here: state_dict_type, fsdp_sync_module")));
}

TEST_F(ConfigSources, AnEnvironmentOfNoLauncherIsNone) {
  const Variables environment({{"HOME", "/root"}, {"ACCELERATE_USE_CPU", "False"}});
  Config config(trainer_settings());
  config.read_environment(environment.get(), environment.names());
  EXPECT_TRUE(config.translations().empty());
}

TEST_F(ConfigSources, NoVariableOfAccelerateIsSilent) {
  const auto told = [](std::map<std::string, std::string> values) -> std::string {
    const Variables environment(std::move(values));
    Config config(trainer_settings());
    std::string text;
    try {
      config.read_environment(environment.get(), environment.names());
    } catch (const Error& e) {
      return e.what();
    }
    for (const auto& [setting, value] : config.values().items()) {
      if (config.given(setting)) text += setting + "=" + value.dump() + "\n";
    }
    for (const ConfigTranslation& translation : config.translations()) {
      for (const std::string& line : translation.announcements()) text += line + "\n";
    }
    return text;
  };
  const std::pair<std::string, std::string> fsdp{"ACCELERATE_USE_FSDP", "true"};
  EXPECT_THAT(told({{"ACCELERATE_USE_CPU", "true"}}), HasSubstr("device=\"cpu\""));
  EXPECT_THAT(told({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"}}), HasSubstr("accumulate=4"));
  EXPECT_THAT(told({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "x"}}), HasSubstr("at least 1"));
  const std::pair<std::string, std::string> megatron{"ACCELERATE_USE_MEGATRON_LM", "true"};
  const std::pair<std::string, std::string> micro_batches{"MEGATRON_LM_NUM_MICRO_BATCHES", "8"};
  EXPECT_THAT(told({megatron, micro_batches, {"MEGATRON_LM_PP_DEGREE", "2"}}),
              AllOf(HasSubstr("pipeline=2"), HasSubstr("accumulate=8"), HasSubstr("clip_norm=1.0"),
                    HasSubstr("strategy=\"no_shard\"")));
  EXPECT_THAT(told({megatron, {"MEGATRON_LM_TP_DEGREE", "2"}}), HasSubstr("tensor parallelism"));
  EXPECT_THAT(told({megatron, micro_batches, {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"}}),
              AllOf(HasSubstr("accumulate=8"), HasSubstr("MEGATRON_LM_NUM_MICRO_BATCHES decides")));
  EXPECT_THAT(told({{"MEGATRON_LM_PP_DEGREE", "2"}}),
              HasSubstr("has no effect: ACCELERATE_USE_MEGATRON_LM is not true"));
  EXPECT_THAT(told({{"ACCELERATE_CPU_AFFINITY", "1"}}), HasSubstr("bind=\"numa\""));
  EXPECT_THAT(told({{"ACCELERATE_USE_DEEPSPEED", "true"},
                    {"ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "Experts"}}),
              HasSubstr("mixtures of experts"));
  EXPECT_THAT(told({fsdp, {"FSDP_SHARDING_STRATGY", "NO_SHARD"}}),
              HasSubstr("FSDP_SHARDING_STRATGY: unknown variable; did you mean "
                        "'FSDP_SHARDING_STRATEGY'"));
  EXPECT_THAT(told({{"FSDP_SHARDING_STRATEGY", "NO_SHARD"}}),
              HasSubstr("FSDP_SHARDING_STRATEGY: has no effect: ACCELERATE_USE_FSDP is not true"));
  EXPECT_THAT(told({fsdp, {"FSDP_ZEBRA", "1"}}), HasSubstr("FSDP_ZEBRA: has no effect"));
  EXPECT_THAT(told({{"ACCELERATE_LOG_LEVEL", "INFO"}}), HasSubstr("ACCELERATE_LOG_LEVEL"));
  for (const char* name : {"MEGATRON_LM_TP_DEGREE", "ACCELERATE_FP8_BACKEND",
                           "PARALLELISM_CONFIG_TP_SIZE", "ACCELERATE_DYNAMO_BACKEND"}) {
    EXPECT_THAT(told({{name, "INDUCTOR"}}),
                ::testing::AnyOf(HasSubstr(name), HasSubstr("dynamo_backend")));
  }
}

TEST_F(ConfigSources, AnEnvironmentOfTransformerEngineGivesDelayedScaling) {
  const auto read = [](std::map<std::string, std::string> values) {
    values.insert({"ACCELERATE_MIXED_PRECISION", "fp8"});
    const Variables environment(std::move(values));
    Config config(trainer_settings());
    config.read_environment(environment.get(), environment.names());
    return config;
  };
  const Config te = read({{"ACCELERATE_FP8_BACKEND", "TE"},
                          {"ACCELERATE_FP8_FORMAT", "HYBRID"},
                          {"ACCELERATE_FP8_AMAX_HISTORY_LEN", "16"},
                          {"ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent"},
                          {"ACCELERATE_FP8_MARGIN", "2"},
                          {"ACCELERATE_FP8_INTERVAL", "1"},
                          {"ACCELERATE_FP8_OVERRIDE_LINEAR_PRECISION", "(False, False, True)"},
                          {"ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "false"},
                          {"ACCELERATE_FP8_OPT_LEVEL", "O2"}});
  EXPECT_EQ(te.text("fp8_recipe"), "delayed");
  EXPECT_EQ(te.get<std::int64_t>("fp8_history"), 16);
  EXPECT_EQ(te.text("fp8_history_rule"), "most-recent");
  EXPECT_EQ(te.get<std::int64_t>("fp8_margin"), 2);
  EXPECT_EQ(te.text("fp8_products"), "forward,input-gradient");
  const Config ao = read({{"ACCELERATE_FP8_BACKEND", "AO"},
                          {"ACCELERATE_FP8_AMAX_HISTORY_LEN", "16"},
                          {"ACCELERATE_FP8_MARGIN", "2"}});
  EXPECT_EQ(ao.text("fp8_recipe"), "current");
  EXPECT_TRUE(ao.is_null("fp8_history"));
  EXPECT_TRUE(ao.is_null("fp8_margin"));
}

TEST_F(ConfigSources, AnEnvironmentIsRefusedByTheNamesOfVariableAndKey) {
  const auto error = [](std::map<std::string, std::string> values) -> std::string {
    const Variables environment(std::move(values));
    try {
      Config config(trainer_settings());
      config.read_environment(environment.get(), environment.names());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kConfig);
      return e.what();
    }
    return "accepted";
  };
  EXPECT_THAT(
      error({{"ACCELERATE_MIXED_PRECISION", "int8"}}),
      AllOf(HasSubstr(
                "environment: ACCELERATE_MIXED_PRECISION: mixed_precision: unknown value 'int8'"),
            HasSubstr("bf16")));
  EXPECT_THAT(error({{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_OFFLOAD_PARAMS", "perhaps"}}),
              HasSubstr("environment: FSDP_OFFLOAD_PARAMS: fsdp_config.fsdp_offload_params"));
  EXPECT_THAT(
      error({{"ACCELERATE_USE_DEEPSPEED", "true"}, {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "7"}}),
      HasSubstr("environment: ACCELERATE_DEEPSPEED_ZERO_STAGE: deepspeed_config.zero_stage"));
}

/// `accelerate launch --use_deepspeed --deepspeed_config_file ... --zero_stage 3 ...` exports what
/// "auto" stands for in that file.
TEST_F(ConfigSources, VariablesFillInTheAutoOfADeepSpeedFile) {
  const auto read = [&](const std::string& text, std::map<std::string, std::string> more) {
    more.insert({{"ACCELERATE_USE_DEEPSPEED", "true"},
                 {"ACCELERATE_DEEPSPEED_CONFIG_FILE", write("ds.json", text)},
                 {"ACCELERATE_MIXED_PRECISION", "bf16"},
                 {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
                 {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
                 {"ACCELERATE_GRADIENT_CLIPPING", "0.5"}});
    const Variables environment(std::move(more));
    Config config(trainer_settings());
    config.read_environment(environment.get(), environment.names());
    return config;
  };
  const Config filled = read(R"({"train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
      "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": "auto"}})",
                             {});
  EXPECT_EQ(filled.get<std::string>("strategy"), "full_shard");
  EXPECT_EQ(filled.get<std::string>("precision"), "bf16");
  EXPECT_EQ(filled.get<std::string>("reduce_dtype"), "bf16");
  EXPECT_EQ(filled.get<int>("accumulate"), 4);
  EXPECT_EQ(filled.get<double>("clip_norm"), 0.5);

  // What the file says itself stays.
  const Config said = read(R"({"train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 2, "gradient_clipping": 2.0,
      "bf16": {"enabled": false}, "zero_optimization": {"stage": 1}})",
                           {});
  EXPECT_EQ(said.get<std::string>("strategy"), "zero1");
  EXPECT_EQ(said.get<std::string>("precision"), "fp32");
  EXPECT_EQ(said.get<int>("accumulate"), 2);
  EXPECT_EQ(said.get<double>("clip_norm"), 2.0);

  const Config absent =
      read(R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {}})", {});
  EXPECT_EQ(absent.get<std::string>("precision"), "bf16");  // as Accelerate adds it

  const auto error = [&](const std::string& text, std::map<std::string, std::string> more) {
    try {
      read(text, std::move(more));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const std::string offload = R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization":
      {"stage": 2, "offload_optimizer": {"device": "auto"}}})";
  const Config parameters = read(R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization":
      {"stage": 3, "offload_param": {"device": "auto", "nvme_path": "auto"}}})",
                                 {{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "nvme"},
                                  {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "/nvme"}});
  EXPECT_EQ(parameters.get<std::string>("offload_parameters"), "disk");
  EXPECT_EQ(parameters.get<std::string>("offload_path"), "/nvme");
  const Config on_disk = read(R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization":
      {"stage": 2, "offload_optimizer": {"device": "auto", "nvme_path": "auto"}}})",
                              {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"},
                               {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "/scratch"}});
  EXPECT_EQ(on_disk.get<std::string>("offload_optimizer"), "disk");
  EXPECT_EQ(on_disk.get<std::string>("offload_path"), "/scratch");
  EXPECT_THAT(error(offload, {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "disk"}}),
              HasSubstr("'disk' is not a device to offload to"));
  for (const char* device : {"none", "cpu", "nvme"}) {
    EXPECT_EQ(error(offload, {{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", device}}),
              "accepted");
  }
  EXPECT_THAT(
      error(R"({"train_micro_batch_size_per_gpu": 2})", {{"ACCELERATE_DEEPSPEED_ZERO_STAGE", "7"}}),
      HasSubstr("ACCELERATE_DEEPSPEED_ZERO_STAGE: '7' is not a stage"));
}

TEST_F(ConfigSources, TheDefaultFileOfAccelerateIsWhereAccelerateLooks) {
  const std::string home = folder_.string();
  EXPECT_FALSE(default_accelerate_config(Variables({{"HOME", home}}).get()).has_value());
  EXPECT_FALSE(default_accelerate_config(Variables({}).get()).has_value());
  const std::string by_home = write(".cache/huggingface/accelerate/default_config.yaml", "x");
  const std::string by_cache = write("xdg/huggingface/accelerate/default_config.yaml", "x");
  const std::string by_name = write("hf/accelerate/default_config.yaml", "x");
  EXPECT_EQ(default_accelerate_config(Variables({{"HOME", home}}).get()), by_home);
  EXPECT_EQ(default_accelerate_config(
                Variables({{"HOME", home}, {"XDG_CACHE_HOME", home + "/xdg"}}).get()),
            by_cache);
  EXPECT_EQ(
      default_accelerate_config(
          Variables({{"HOME", home}, {"XDG_CACHE_HOME", home + "/xdg"}, {"HF_HOME", home + "/hf"}})
              .get()),
      by_name);
}

}  // namespace
}  // namespace tessera
