#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "cli/launched_program.h"
#include "tessera/compat/aliases.h"
#include "tessera/core/error.h"

// Flags of Accelerate, torchrun, Transformers' Trainer, nanoGPT and llm.c, given to ours: what has
// a counterpart works, of the rest it is said why not.
namespace tessera {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ForeignFlags : public test::LaunchTest {
 protected:
  std::string answer(const std::string& flag) const {
    return run({"launch", flag, "--", "train"}).err;
  }

  /// The note on a flag that no command has, without a start of the program.
  static std::string about(const std::string& flag) {
    std::vector<std::string> words{flag};
    const std::vector<std::string> notes = take_flags_without_effect(words);
    if (!notes.empty()) return notes.front();
    try {
      refuse_flag(flag, {});
    } catch (const Error& error) {
      return error.what();
    }
  }

  /// The flags in the help of a command.
  std::set<std::string> shown_flags(std::vector<std::string> command) const {
    command.emplace_back("--help");
    const std::string help = run(command).out;
    const std::regex flag("--[a-z0-9-]+");
    return {std::sregex_token_iterator(help.begin(), help.end(), flag), {}};
  }

  /// The answer of `plan` to flags, without the actions.
  nlohmann::json settings(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"plan", "--no-default-config", "--format", "json"});
    const ProgramResult result = run(flags);
    EXPECT_EQ(result.exit_code, 0) << flags.back() << ": " << result.err;
    if (result.exit_code != 0) return {};
    return nlohmann::json::parse(result.out)["settings"];
  }
};

/// A flag with its value, and the setting of ours that it gives.
struct Habit {
  std::vector<std::string> words;
  const char* setting;
  nlohmann::json value;
};

TEST_F(ForeignFlags, WithACounterpartTheyWork) {
  const Habit habits[] = {
      {{"--world-size", "2"}, "ranks", 2},
      {{"--nproc_per_node=2"}, "ranks", 2},
      {{"--num_processes", "2"}, "ranks", 2},
      {{"--lr", "0.5"}, "learning_rate", 0.5},
      {{"--min_lr", "1e-5"}, "minimum_learning_rate", 1e-5},
      {{"--lr_scheduler_type", "constant_with_warmup"}, "learning_rate_schedule", "constant"},
      {{"--lr_scheduler_type", "linear"}, "learning_rate_schedule", "linear"},
      {{"--warmup_iters", "7"}, "warmup_steps", 7},
      {{"--max-steps", "70"}, "steps", 70},
      {{"--max_iters", "70"}, "steps", 70},
      {{"-x", "70"}, "steps", 70},
      {{"--batch-size", "2"}, "micro_batch", 2},
      {{"--per_device_train_batch_size", "2"}, "micro_batch", 2},
      {{"-b", "2"}, "micro_batch", 2},
      {{"--gradient_accumulation_steps", "2"}, "accumulate", 2},
      {{"--max_grad_norm", "0.5"}, "clip_norm", 0.5},
      {{"--adam_beta2", "0.5"}, "beta2", 0.5},
      {{"--optim", "lion_32bit"}, "optimizer", "lion"},
      {{"--optim", "adamw_torch_fused"}, "optimizer", "adamw"},
      {{"--optim", "adamw_bnb_8bit"}, "optimizer", "adamw8bit"},
      {{"--optim", "paged_adamw_32bit"}, "optimizer", "adamw"},
      {{"--lr-group", "*.bias=2"}, "learning_rate_groups", "*.bias=2"},
      {{"--bf16"}, "precision", "bf16"},
      {{"--bf16", "False"}, "precision", "fp32"},
      {{"--mixed_precision", "no"}, "precision", "fp32"},
      {{"--mixed_precision=bf16"}, "precision", "bf16"},
      {{"--dtype", "bfloat16"}, "precision", "bf16"},
      {{"--fp16"}, "precision", "fp16"},
      {{"--mixed_precision", "fp16"}, "precision", "fp16"},
      {{"--dtype", "float16"}, "precision", "fp16"},
      {{"--gradient_checkpointing"}, "recompute", "full"},
      {{"--use_cpu"}, "device", "cpu"},
      {{"--debug"}, "check_collectives", true},
      {{"--enable_cpu_affinity"}, "bind", "numa"},
      {{"--bind_cores_to_rank"}, "bind", "cores"},
      {{"--bind_core_list", "0"}, "bind_core_list", "0"},
      {{"--ddp_timeout", "9"}, "timeout", 9.0},
      {{"--num_cpu_threads_per_process", "2"}, "threads_per_rank", 2},
      {{"--n_layer", "2"}, "layers", 2},
      {{"--n_head", "2"}, "heads", 2},
      {{"--n_embd", "64"}, "width", 64},
      {{"--block_size", "32"}, "context_length", 32},
      {{"--zero_stage", "2"}, "strategy", "zero2"},
      {{"-z", "1"}, "strategy", "zero1"},
      {{"--fsdp", "shard_grad_op auto_wrap"}, "strategy", "shard_grad_op"},
      {{"--fsdp_sharding_strategy", "2"}, "strategy", "shard_grad_op"},
      {{"--fsdp_auto_wrap_policy", "NO_WRAP"}, "wrap", "none"},
      {{"--fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer"}, "wrap", "layer"},
      {{"--fsdp_min_num_params", "1000"}, "wrap", "size:1000"},
      {{"--fsdp_backward_prefetch", "BACKWARD_POST"}, "prefetch_backward", 0},
      {{"--fsdp_forward_prefetch", "false"}, "prefetch_forward", 0},
      {{"--seq_len", "32"}, "sequence_length", 32},
      {{"--wd", "0.5"}, "weight_decay", 0.5},
      {{"--eval_steps", "7"}, "eval_every", 7},
  };
  for (const Habit& habit : habits) {
    EXPECT_EQ(settings(habit.words)[habit.setting], habit.value) << habit.words.front();
  }
}

TEST_F(ForeignFlags, WithoutEffectTheyAreTakenWithANote) {
  for (const std::vector<std::string>& flag : {std::vector<std::string>{"--use_fsdp"},
                                               {"--compile=False"},
                                               {"--logging_steps", "10"},
                                               {"--fsdp_use_orig_params", "true"},
                                               {"--dynamo_backend", "no"},
                                               {"--multi_gpu"}}) {
    std::vector<std::string> words{"plan", "--no-default-config", "--format", "summary"};
    words.insert(words.end(), flag.begin(), flag.end());
    words.insert(words.end(), {"--steps", "3"});
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr(" has no effect: ")) << flag.front();
  }
  EXPECT_THAT(error_of(train({"--use_fsdp", "x", "y"})), HasSubstr("unexpected argument 'y'"));
}

/// All names of transformers 5.24's OptimizerNames, and those that version 4 had besides.
TEST_F(ForeignFlags, EveryOptimizerOfTheTrainerIsOneHereOrIsRefusedByName) {
  constexpr const char* kTaken[] = {
      "adamw_torch",       "adamw_torch_fused", "adamw_torch_xla",  "adamw_torch_npu_fused",
      "adamw_apex_fused",  "adamw_hf",          "adamw_torch_8bit", "sgd",
      "adamw_bnb_8bit",    "adamw_8bit",        "lion_8bit",        "lion_32bit",
      "paged_adamw_32bit", "paged_adamw_8bit",  "paged_lion_32bit", "paged_lion_8bit",
      "adafactor"};
  constexpr const char* kRefused[] = {"adamw_anyprecision",
                                      "adamw_torch_4bit",
                                      "ademamix",
                                      "adagrad",
                                      "ademamix_8bit",
                                      "rmsprop",
                                      "paged_ademamix_32bit",
                                      "rmsprop_bnb",
                                      "paged_ademamix_8bit",
                                      "rmsprop_bnb_8bit",
                                      "rmsprop_bnb_32bit",
                                      "galore_adamw",
                                      "galore_adamw_8bit",
                                      "galore_adafactor",
                                      "galore_adamw_layerwise",
                                      "lomo",
                                      "galore_adamw_8bit_layerwise",
                                      "adalomo",
                                      "galore_adafactor_layerwise",
                                      "grokadamw",
                                      "schedule_free_radam",
                                      "schedule_free_sgd",
                                      "schedule_free_adamw",
                                      "apollo_adamw",
                                      "apollo_adamw_layerwise",
                                      "stable_adamw"};
  const auto alias = std::ranges::find(aliases(), "--optim", &Alias::theirs);
  ASSERT_NE(alias, aliases().end());
  for (const char* const name : kTaken) {
    EXPECT_THAT(alias->value(name),
                AnyOf("adamw", "adamw8bit", "adamw_8bit", "lion", "sgd", "adafactor"));
    const bool differs = std::string_view(name).starts_with("paged_") ||
                         std::string_view(name) == "lion_8bit" ||
                         std::string_view(name) == "adamw_torch_8bit";
    EXPECT_EQ(alias->note(name).empty(), !differs) << name;
  }
  for (const char* const name : kRefused) {
    try {
      alias->value(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(concat("there is no optimizer '", name, "'")),
                                      HasSubstr("; the nearest is ")));
    }
  }
}

TEST_F(ForeignFlags, AnOptimizerThatDiffersIsTakenWithANote) {
  const std::vector<std::string> words{"plan", "--no-default-config", "--format", "summary"};
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more);
    return run(all);
  };
  const ProgramResult flag = with({"--optim", "paged_adamw_8bit"});
  EXPECT_EQ(flag.exit_code, 0) << flag.err;
  EXPECT_THAT(flag.err,
              HasSubstr("note: 'paged_adamw_8bit' is --optimizer adamw8bit: its state is"));
  std::ofstream(path("optim.yaml")) << "ranks: 1\noptim: lion_8bit\n";
  const ProgramResult file = with({"--config", path("optim.yaml")});
  EXPECT_EQ(file.exit_code, 0) << file.err;
  EXPECT_THAT(file.err, HasSubstr("'lion_8bit' is --optimizer lion: the momentum has 32 bits"));
  std::ofstream(path("optim.yaml")) << "ranks: 1\noptim: adagrad\n";
  EXPECT_THAT(
      error_of(with({"--config", path("optim.yaml")})),
      AllOf(HasSubstr("optim.yaml:2: "), HasSubstr("'optim': there is no optimizer 'adagrad'")));
}

TEST_F(ForeignFlags, TrainsWithThem) {
  const ProgramResult result = run({"train",        "--no-default-config",
                                    "--train_file", write_text(),
                                    "--n_layer",    "1",
                                    "--n_head",     "1",
                                    "--n_embd",     "16",
                                    "--block_size", "16",
                                    "--batch_size", "2",
                                    "--max_iters",  "2",
                                    "--lr",         "1e-3",
                                    "--world-size", "2",
                                    "--quiet",      "--logging_dir",
                                    path("board")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(std::filesystem::is_empty(path("board")));
}

TEST_F(ForeignFlags, AreGivenOnceAndTheirValuesAreChecked) {
  EXPECT_THAT(error_of(train({"--lr", "1", "--lr", "2"})), HasSubstr("--lr is given 2 times"));
  EXPECT_THAT(error_of(train({"--lr", "1", "--learning-rate", "2"})),
              HasSubstr("--lr is --learning-rate here, which another flag gives otherwise"));
  EXPECT_THAT(error_of(train({"--lr", "fast"})), HasSubstr("--learning-rate: 'fast' is not a"));
  EXPECT_THAT(error_of(train({"--bf16", "maybe"})), HasSubstr("--bf16: 'maybe' is not true or"));
  EXPECT_THAT(error_of(train({"--mixed_precision", "fp4"})), HasSubstr("--precision: "));
  EXPECT_THAT(error_of(train({"--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"})),
              HasSubstr("--wrap size:N here"));
  EXPECT_THAT(error_of(train({"--lr"})), HasSubstr("--lr needs a value"));
}

TEST_F(ForeignFlags, AreNotShown) {
  for (const char* command : {"train", "launch", "estimate-memory"}) {
    const std::string help = run({command, "--help"}).out;
    EXPECT_THAT(help, Not(AnyOf(HasSubstr("--lr"), HasSubstr("--nproc"), HasSubstr("--world"),
                                HasSubstr("--num-proc"), HasSubstr(" -b"))))
        << command;
  }
}

TEST_F(ForeignFlags, LaunchTakesThoseOfLaunchers) {
  const std::string data = write_text();
  const auto ranks_of = [&](const std::vector<std::string>& flags) {
    std::filesystem::remove(path("log.jsonl"));
    const ProgramResult result =
        launch(flags, {"--data", data, "--steps", "1", "--quiet", "--log", path("log.jsonl")});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? read_log("log.jsonl").at(0)["ranks"].get<int>() : 0;
  };
  EXPECT_EQ(ranks_of({"--nproc_per_node", "2"}), 2);
  EXPECT_EQ(ranks_of({"--num_processes=2", "--num_machines=1", "--machine_rank=0"}), 2);
  EXPECT_EQ(ranks_of({"--nnodes", "1", "--node_rank", "0", "--master_addr", "127.0.0.1",
                      "--master_port", "0", "--nproc-per-node", "3"}),
            3);
}

// Accelerate counts the processes of all machines.
TEST_F(ForeignFlags, NumProcessesAreOfAllMachines) {
  const auto problem = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments{"launch", "--num_machines", "2", "--main_process_ip",
                                       "127.0.0.1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"--", "train", "--ranks", "1"});
    return error_of(run(arguments));
  };
  EXPECT_THAT(problem({"--num_processes", "3"}),
              HasSubstr("--num-processes is 3, of all machines together, and cannot be divided"));
  EXPECT_THAT(problem({"--num_processes", "4", "--processes", "2"}), HasSubstr("give one of them"));
  const ProgramResult four = run({"launch", "--num_machines", "2", "--main_process_ip", "10.0.0.1",
                                  "--num_processes", "4", "--", "train", "--ranks", "1"});
  EXPECT_THAT(error_of(four), HasSubstr("--nodes 2 x --processes 2 x"));
}

// Flags that shape the training may stand before the command, as `accelerate launch` takes them.
TEST_F(ForeignFlags, LaunchHandsOnWhatTheLaunchedCommandTakes) {
  const ProgramResult result =
      run({"launch", "--num_processes", "2", "--multi_gpu", "--mixed_precision", "bf16",
           "--zero_stage=2", "--debug", "--use_cpu", "--", "train", "--data", write_text(),
           "--steps", "1", "--quiet", "--log", path("log.jsonl")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("note: --multi-gpu has no effect: "));
  const auto run_line = read_log("log.jsonl").at(0);
  EXPECT_EQ(run_line["ranks"], 2);
  EXPECT_EQ(run_line["precision"], "bf16");
  EXPECT_EQ(run_line["strategy"], "zero2");
  EXPECT_EQ(run_line["check_collectives"], true);
  EXPECT_EQ(run_line["device"], "cpu");
  EXPECT_THAT(error_of(run({"launch", "--precision", "fp4", "--", "train"})),
              HasSubstr("--precision: unknown value 'fp4'"));
}

TEST_F(ForeignFlags, EveryFlagOfAcceleratesLauncherIsAnswered) {
  std::ifstream list(std::string(TESSERA_SOURCE_DIR) + "/tests/cli/accelerate_launch_flags.txt");
  std::set<std::string> shown = shown_flags({"launch"});
  shown.merge(shown_flags({"train"}));
  int answered = 0;
  for (std::string flag; std::getline(list, flag);) {
    const std::vector<std::string> ours{
        "--config_file",     "--gpu_ids",           "--help",
        "--num_processes",   "--num_machines",      "--machine_rank",
        "--main_process_ip", "--main_process_port", "--deepspeed_config_file",
        "--max_restarts"};
    if (flag.front() == '#' || std::ranges::find(ours, flag) != ours.end()) continue;
    SCOPED_TRACE(flag);
    const std::string name = spelt_as_ours({flag}).front();
    const auto is_it = [&](const Alias& alias) {
      return alias.theirs == name && shown.contains(std::string(alias.ours));
    };
    if (!shown.contains(name) && std::ranges::none_of(aliases(), is_it)) {
      EXPECT_THAT(about(name),
                  AnyOf(HasSubstr("' has no counterpart: "), HasSubstr(" has no effect: ")));
    }
    ++answered;
  }
  EXPECT_GT(answered, 100);
}

TEST_F(ForeignFlags, TheAnswerNamesOursAndItsPlace) {
  EXPECT_THAT(answer("--megatron_lm_tp_degree"), HasSubstr("not split in other ways"));
  EXPECT_THAT(answer("-m"), HasSubstr("tessera launch FLAGS -- train FLAGS"));
  EXPECT_THAT(answer("--proceses"), HasSubstr("did you mean '--processes'"));
  EXPECT_THAT(error_of(train({"--nnodes", "2"})),
              HasSubstr("'--nnodes' is '--nodes' here, which this command does not have"));
  EXPECT_THAT(error_of(train({"--tpu"})), HasSubstr("'--tpu' has no counterpart: TPUs"));
}

TEST_F(ForeignFlags, TransformersTrainersAreAnswered) {
  const std::pair<const char*, const char*> answers[] = {
      {"--fp16_backend", "no counterpart: what there is of fp16 is in --precision fp16"},
      {"--warmup_ratio", "no counterpart: say how many steps: --warmup-steps"},
      {"--output_dir", "no counterpart: say where each output goes: --save"},
      {"--save_strategy", "no counterpart: say how often: --save-every N"},
      {"--eval_strategy", "no counterpart: say what to evaluate on, and how often"},
  };
  for (const auto& [flag, answer] : answers) {
    EXPECT_THAT(about(spelt_as_ours({flag}).front()), HasSubstr(answer)) << flag;
  }
}

/// Metrics of a run change nothing of it.
TEST_F(ForeignFlags, TrackersStopNoCommand) {
  const ProgramResult planned = run({"plan", "--no-default-config", "--layers", "2", "--report_to",
                                     "wandb", "--wandb_project", "x"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.err, HasSubstr("--report-to has no effect: metrics go to files"));
}

TEST_F(ForeignFlags, TorchrunsAreAnswered) {
  for (const char* flag :
       {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--standalone",
        "--monitor-interval", "--start-method", "--role", "--module", "--no-python", "--run-path",
        "--log-dir", "--redirects", "--tee", "--local-ranks-filter", "--local-addr"}) {
    SCOPED_TRACE(flag);
    EXPECT_THAT(about(flag), AnyOf(HasSubstr("has no counterpart"), HasSubstr(" has no effect: ")));
  }
}

}  // namespace
}  // namespace tessera
