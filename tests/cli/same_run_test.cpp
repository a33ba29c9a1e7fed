#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "cli/launched_program.h"
#include "support/extent.h"
#include "tessera/trainer/setting.h"

// Processes of one run that were started differently: each ends at once, and says in what.
namespace tessera {
namespace {

using test::ProgramResult;
using test::read_file;
using test::ScopedVariables;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SameRun : public test::LaunchTest {
 protected:
  using Flags = std::map<std::string, std::string>;

  /// A very small training.
  Flags usual() const {
    return {
        {"layers", "2"},      {"heads", "2"}, {"width", "16"},        {"context_length", "16"},
        {"micro_batch", "2"}, {"steps", "2"}, {"sample_tokens", "0"}, {"data", path("data.txt")}};
  }

  struct Two {
    int first = -1, second = -1;  ///< exit codes
    std::string first_says, second_says;
  };
  /// The output of two processes that torchrun would start.
  Two train_two(const Flags& first, const Flags& second) const {
    ScopedVariables torchrun{{"RANK", "0"},
                             {"WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", port_of_test()},
                             {"TESSERA_JOB_TOKEN", "of this test"},
                             {"OMP_NUM_THREADS", "1"}};
    const auto arguments = [](const Flags& flags) {
      std::vector<std::string> all{"train", "--no-default-config"};
      for (const auto& [name, value] : flags) all.push_back(flag_name(name) + "=" + value);
      return all;
    };
    Two two;
    const ProgramResult result = run(arguments(first), [&](pid_t) {
      torchrun.set("RANK", "1");
      const int status = std::system(
          (in_shell(arguments(second)) + " >" + path("stdout2") + " 2>" + path("stderr2")).c_str());
      two.second = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    });
    two.first = result.exit_code;
    two.first_says = result.err;
    two.second_says = read_file(path("stderr2"));
    return two;
  }

  /// The words of both, in one line.
  static std::string disagreement(const Two& two) {
    EXPECT_EQ(two.first, 2) << two.first_says;
    EXPECT_EQ(two.second, 2) << two.second_says;
    EXPECT_EQ(two.first_says, two.second_says);
    EXPECT_EQ(std::count(two.first_says.begin(), two.first_says.end(), '\n'), 1) << two.first_says;
    return two.first_says;
  }
};

/// A value of each setting that a training of two ranks on CPUs can have beside the default, and
/// other flags that it takes.
struct Other {
  std::string value;
  std::map<std::string, std::string> both{};
};
const std::map<std::string, Other> kOthers{
    {"model", {"gpt2-124m", {{"vocab_size", "256"}}}},
    {"layers", {"3"}},
    {"heads", {"4"}},
    {"width", {"32"}},
    {"vocab_size", {"300"}},
    {"context_length", {"17", {{"sequence_length", "8"}}}},
    {"dropout", {"0.1"}},
    {"sequence_length", {"8"}},
    {"lora", {"r=4"}},
    {"ia3", {"targets=c_attn"}},
    {"prompt_tuning", {"tokens=2", {{"sequence_length", "8"}}}},
    {"prefix_tuning", {"tokens=2", {{"sequence_length", "8"}}}},
    {"p_tuning", {"tokens=2", {{"sequence_length", "8"}}}},
    {"base_format", {"nf4", {{"lora", "r=4"}}}},
    {"strategy", {"zero2"}},
    {"trainable_strategy", {"no_shard"}},
    {"replicas", {"2"}},
    {"parameter_placement", {"none"}},
    {"gradient_placement", {"replicate+shard", {{"optimizer_placement", "replicate+shard"}}}},
    {"optimizer_placement", {"replicate+shard"}},
    {"reshard_after_forward", {"false"}},
    {"reduction_order", {"hierarchical"}},
    {"wrap", {"none"}},
    {"pipeline", {"2"}},
    {"pipeline_schedule", {"gpipe"}},
    {"virtual_stages", {"2", {{"pipeline", "2"}}}},
    {"pipeline_split", {"1,3", {{"pipeline", "2"}}}},
    {"layers_per_virtual_stage", {"1", {{"pipeline", "2"}}}},
    {"first_rank_layers", {"1", {{"pipeline", "2"}}}},
    {"last_rank_layers", {"1", {{"pipeline", "2"}}}},
    {"pipeline_prefetch", {"2"}},
    {"tied_apart", {"true"}},
    {"offload_optimizer", {"host:0.5"}},
    {"offload_parameters", {"host:0.5"}},
    {"offload_gradients", {"host:0.5"}},
    {"offload_activations", {"host", {{"recompute", "full"}}}},
    {"fit", {"auto"}},
    {"fit_profile", {"a100-sxm", {{"fit", "auto"}}}},
    {"prefetch_host", {"2"}},
    {"prefetch_disk", {"1"}},
    {"prefetch_forward", {"2"}},
    {"prefetch_backward", {"2"}},
    {"steps", {"3"}},
    {"micro_batch", {"3"}},
    {"accumulate", {"2"}},
    {"accumulate_unsharded", {"true"}},
    {"auto_batch", {"true"}},
    {"recompute", {"full"}},
    {"precision", {"bf16"}},
    {"reduce_dtype", {"bf16", {{"precision", "bf16"}}}},
    {"fp8_recipe", {"delayed", {{"precision", "fp8"}}}},
    {"fp8_history", {"16", {{"precision", "fp8"}, {"fp8_recipe", "delayed"}}}},
    {"fp8_history_rule", {"most-recent", {{"precision", "fp8"}, {"fp8_recipe", "delayed"}}}},
    {"fp8_margin", {"1", {{"precision", "fp8"}, {"fp8_recipe", "delayed"}}}},
    {"fp8_format", {"e4m3", {{"precision", "fp8"}}}},
    {"fp8_scales", {"exact", {{"precision", "fp8"}}}},
    {"fp8_products", {"forward", {{"precision", "fp8"}}}},
    {"fp8_bf16_blocks", {"1,0", {{"precision", "fp8"}}}},
    {"gather_format", {"bf16", {{"precision", "fp8"}}}},
    {"fp8_scale_units", {"2", {{"precision", "fp8"}}}},
    {"fp8_fast_accumulation", {"true", {{"precision", "fp8"}}}},
    {"seed", {"2"}},
    {"eval_every", {"1", {{"eval_data", TESSERA_SOURCE_DIR "/tests/text/alice.txt"}}}},
    {"eval_tokens", {"16", {{"eval_data", TESSERA_SOURCE_DIR "/tests/text/alice.txt"}}}},
    {"patience", {"2", {{"eval_data", TESSERA_SOURCE_DIR "/tests/text/alice.txt"}}}},
    {"min_improvement",
     {"0.1", {{"eval_data", TESSERA_SOURCE_DIR "/tests/text/alice.txt"}, {"patience", "2"}}}},
    {"loss_scale", {"1024"}},
    {"loss_scale_dialect", {"megatron", {{"loss_scale", "dynamic"}}}},
    {"loss_scale_initial", {"1024", {{"loss_scale", "dynamic"}}}},
    {"loss_scale_growth_factor", {"4", {{"loss_scale", "dynamic"}}}},
    {"loss_scale_backoff_factor", {"0.25", {{"loss_scale", "dynamic"}}}},
    {"loss_scale_window", {"10", {{"loss_scale", "dynamic"}}}},
    {"loss_scale_minimum", {"2", {{"loss_scale", "dynamic"}, {"loss_scale_dialect", "megatron"}}}},
    {"loss_scale_hysteresis",
     {"3", {{"loss_scale", "dynamic"}, {"loss_scale_dialect", "megatron"}}}},
    {"loss_scale_consecutive_hysteresis",
     {"true", {{"loss_scale", "dynamic"}, {"loss_scale_dialect", "deepspeed"}}}},
    {"learning_rate", {"0.002"}},
    {"minimum_learning_rate", {"0.00001"}},
    {"learning_rate_schedule", {"linear"}},
    {"warmup_steps", {"1"}},
    {"decay_steps", {"1"}},
    {"weight_decay", {"0.2"}},
    {"beta1", {"0.8"}},
    {"beta2", {"0.8"}},
    {"epsilon", {"1e-7"}},
    {"optimizer", {"sgd"}},
    {"learning_rate_groups", {"*.weight=0.5"}},
    {"momentum", {"0.5", {{"optimizer", "sgd"}}}},
    {"nesterov", {"true", {{"optimizer", "sgd"}, {"momentum", "0.5"}}}},
    {"epsilon1", {"1e-10", {{"optimizer", "adafactor"}}}},
    {"epsilon2", {"0.5", {{"optimizer", "adafactor"}, {"scale_parameter", "true"}}}},
    {"clip_threshold", {"0.5", {{"optimizer", "adafactor"}}}},
    {"decay_rate", {"0.5", {{"optimizer", "adafactor"}}}},
    {"scale_parameter", {"true", {{"optimizer", "adafactor"}}}},
    {"relative_step", {"true", {{"optimizer", "adafactor"}}}},
    {"warmup_init", {"true", {{"optimizer", "adafactor"}, {"relative_step", "true"}}}},
    {"clip_norm", {"0.5"}},
    {"stochastic_rounding", {"true", {{"precision", "bf16"}}}},
    {"group", {"thread"}},
    {"deterministic_collectives", {"true"}},
    {"attention", {"own"}},
    {"deterministic_attention", {"false"}},
    {"optimizer_blocks", {"64"}},
    {"cuda_graph", {"false"}},
    {"threads_per_rank", {"2"}},
    {"check_collectives", {"true"}},
    {"time_actions", {"true"}},
    {"trace", {"trace.json"}},
    {"trace_steps", {"2", {{"trace", "trace.json"}}}},
    {"overlap_steps", {"true"}},
    {"save", {"here"}},
    {"save_every", {"2"}},
    {"save_total_limit", {"2"}},
    {"save_best",
     {"true", {{"eval_data", TESSERA_SOURCE_DIR "/tests/text/alice.txt"}, {"save", "here"}}}},
    {"save_async", {"false"}},
    {"save_failures", {"tolerate"}},
    {"resume", {"there"}},
    {"allow_other_data", {"true"}},
    {"allow_other_optimizer", {"true"}},
    {"allow_other_model", {"true"}},
    {"stop_after", {"1"}},
    {"allow_non_finite", {"true"}},
    {"parameters_hash", {"false"}},
    {"shuffle", {"false"}},
    {"sample_tokens", {"5"}},
    {"state_dict_type", {"full", {{"save", "here"}}}},
    {"export_dtype", {"bf16"}},
    {"export", {std::filesystem::temp_directory_path() / "tessera_exported_by_nobody"}},
};

/// Not tried here: of `ranks` the meeting itself speaks, another device takes a GPU, another kind
/// of data takes other data, and `epochs` stands instead of the steps that these runs have.
const std::vector<std::string> kNotHere{"ranks", "device", "data_kind", "epochs"};

/// Where something lies (what lies there is compared, where it matters), what is shown, and what a
/// machine has.
bool may_differ(const std::string& name) {
  static const std::set<std::string> kNames{"data",
                                            "eval_data",
                                            "log",
                                            "csv",
                                            "gemm_table",
                                            "tensorboard",
                                            "append",
                                            "overwrite",
                                            "verbose",
                                            "quiet",
                                            "prompt",
                                            "temperature",
                                            "top_k",
                                            "format",
                                            "memory_limit",
                                            "timeout",
                                            "tokenizer",
                                            "top_p",
                                            "adapter",
                                            "init",
                                            "grace",
                                            "dump_folder",
                                            "bind",
                                            "bind_core_list",
                                            "packing",
                                            "chat_template",
                                            "chat_template_kwargs",
                                            "offload_path",
                                            "ranks_per_node",
                                            "task",
                                            "labels",
                                            "mlm_probability",
                                            "resize_vocabulary"};
  return kNames.contains(name);
}

TEST_F(SameRun, EverySettingIsComparedOrMayDiffer) {
  write_text();
  ASSERT_EQ(train({"--data", path("data.txt"), "--steps", "1", "--quiet", "--log", path("log")})
                .exit_code,
            0);
  auto settings = read_log("log").at(0);
  for (const char* key : {"kind", "version", "numerics", "date", "host", "parameters"}) {
    settings.erase(key);
  }
  EXPECT_GT(settings.size(), 55U);
  int number = 0;  // without CI's time, every fourth is tried
  for (const auto& [name, value] : settings.items()) {
    SCOPED_TRACE(name);
    if (std::ranges::find(kNotHere, name) != kNotHere.end()) continue;
    if (may_differ(name)) {
      EXPECT_EQ(kOthers.count(name), 0U);
      continue;
    }
    ASSERT_EQ(kOthers.count(name), 1U) << "neither may it differ nor is it tried here";
    if (!test::runs_ci_tests() && number++ % 4 != 0) continue;
    const Other& other = kOthers.at(name);
    Flags first = usual();
    for (const auto& [flag, text] : other.both) first[flag] = text;
    Flags second = first;
    second[name] = other.value;
    EXPECT_THAT(disagreement(train_two(first, second)), HasSubstr(flag_name(name) + " is "));
  }
}

TEST_F(SameRun, WhatMayDifferDoes) {
  std::filesystem::create_directory(path("elsewhere"));
  std::filesystem::copy_file(write_text(), path("elsewhere/data.txt"));
  Flags second = usual();
  for (const auto& [name, value] : Flags{{"data", path("elsewhere/data.txt")},
                                         {"log", path("log")},
                                         {"overwrite", "true"},
                                         {"verbose", "true"},
                                         {"prompt", "x"},
                                         {"memory_limit", "1GiB"},
                                         {"timeout", "70"}}) {
    EXPECT_TRUE(may_differ(name)) << name;
    second[name] = value;
  }
  const Two two = train_two(usual(), second);
  EXPECT_EQ(two.first, 0) << two.first_says;
  EXPECT_EQ(two.second, 0) << two.second_says;
}

TEST_F(SameRun, TheSameInOtherWordsIsNoDifference) {
  write_text();
  Flags second = usual();
  second["strategy"] = "FULL_SHARD";
  second["learning_rate"] = "1e-3";
  second["warmup_steps"] = "0";
  const Two two = train_two(usual(), second);
  EXPECT_EQ(two.first, 0) << two.first_says;
}

TEST_F(SameRun, OtherDataOfTheSameNameAndSizeAreFound) {
  std::filesystem::create_directory(path("elsewhere"));
  std::string text = read_file(write_text());
  text[3000] = 'X';
  write("elsewhere/data.txt", text);
  Flags second = usual();
  second["data"] = path("elsewhere/data.txt");
  EXPECT_THAT(disagreement(train_two(usual(), second)),
              AllOf(HasSubstr("disagree: content of data files is hash "),
                    Not(HasSubstr("bytes of data files"))));
  write("elsewhere/data.txt", text + "more");
  EXPECT_THAT(disagreement(train_two(usual(), second)),
              HasSubstr("bytes of data files is 6030 on "));
}

TEST_F(SameRun, OtherTokenizersAreFound) {
  write_text();
  const std::string file = read_file(TESSERA_SOURCE_DIR "/tests/model/tokenizers/gpt2.json");
  Flags first = usual();
  first["tokenizer"] = write("a.json", file);
  Flags second = usual();
  second["tokenizer"] = write("b.json", file + "\n");
  EXPECT_EQ(train_two(first, second).first, 0) << "the same under another name";
  std::string other = file;
  other.replace(other.find("\"special\":true"), 14, "\"special\":false");
  write("b.json", other);
  EXPECT_THAT(disagreement(train_two(first, second)), HasSubstr("disagree: tokenizer is hash "));
}

TEST_F(SameRun, OtherInitialParametersAreFound) {
  write_text();
  const std::filesystem::path golden = TESSERA_SOURCE_DIR "/tests/model/golden/hugging_face";
  std::filesystem::copy(golden / "v5", path("v5"));
  std::string text(8000, '\0');
  for (std::size_t i = 0; i < text.size(); i += 2) text[i] = static_cast<char>(i % 65);
  Flags first{{"data", write("data.bin", text)},
              {"steps", "1"},
              {"sequence_length", "8"},
              {"micro_batch", "1"},
              {"sample_tokens", "0"}};
  first["init"] = golden / "v5";
  Flags second = first;
  second["init"] = path("v5");
  const Two two = train_two(first, second);
  EXPECT_EQ(two.first, 0) << two.first_says;
  EXPECT_EQ(two.second, 0) << two.second_says;
  std::string weights = read_file(path("v5/model.safetensors"));
  weights.back() ^= 1;
  write("v5/model.safetensors", weights);
  EXPECT_THAT(disagreement(train_two(first, second)),
              HasSubstr("disagree: content of initial parameters is hash "));
  second.erase("init");
  for (const auto& [name, value] : Flags{{"layers", "2"},
                                         {"heads", "3"},
                                         {"width", "12"},
                                         {"vocab_size", "65"},
                                         {"context_length", "24"}}) {
    second[name] = value;
  }
  EXPECT_THAT(disagreement(train_two(first, second)),
              HasSubstr("content of initial parameters is hash "));
}

// Once this waited until the timeout, and then blamed rank 0.
TEST_F(SameRun, OtherStepsWaitForNoTimeout) {
  write_text();
  Flags second = usual();
  second["steps"] = "200";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(disagreement(train_two(usual(), second)),
              HasSubstr("--steps is 2 on rank 0 and 200 on rank 1;"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace tessera
