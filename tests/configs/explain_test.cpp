#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <regex>
#include <sstream>

#include "cli/program.h"

namespace tessera {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kFile =
    "distributed_type: FSDP\n"
    "fsdp_config:\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_reshard_after_forward: SHARD_GRAD_OP\n"
    "num_processes: 2\n"
    "rdzv_backend: c10d\n";

/// Lines that were wrapped, in one piece.
std::string unwrapped(const std::string& text) {
  return std::regex_replace(std::regex_replace(text, std::regex("\n {8}"), " "),
                            std::regex("\n {4}(?! )"), " ");
}

class ExplainCommand : public test::ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    setenv("HF_HOME", path("hf").c_str(), 1);  // no file of the person who runs the test
  }
};

TEST_F(ExplainCommand, TellsEveryKeyEverySourceAndEveryDifference) {
  const std::string file = write("a.yaml", kFile);
  const ProgramResult result = run({"explain", file, "--all", "--micro-batch", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(unwrapped(result.out),
              AllOf(HasSubstr("settings of Accelerate"), HasSubstr(file + ":4  fsdp_config.fsdp_"),
                    HasSubstr("-> strategy = shard_grad_op"),
                    HasSubstr("Accelerate runs FULL_SHARD with fsdp_version 1"),
                    HasSubstr("no effect: processes have one way to find each other"),
                    HasSubstr("command line")));
}

TEST_F(ExplainCommand, TellsTheSameInJson) {
  const std::string file = write("a.yaml", kFile);
  const ProgramResult result = run({"explain", file, "--json", "--ranks", "4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["files"][0]["dialect"], "Accelerate");
  EXPECT_EQ(json["settings"]["ranks"]["value"], 4);
  EXPECT_EQ(json["settings"]["ranks"]["source"], "command line");
  EXPECT_EQ(json["settings"]["strategy"]["source"], file + ":4");
  EXPECT_EQ(json["settings"]["replicas"]["source"], "derived");
  EXPECT_EQ(json["settings"]["seed"]["source"], "default");
  bool found = false;
  for (const auto& entry : json["files"][0]["entries"]) {
    if (entry["key"] != "rdzv_backend") continue;
    EXPECT_EQ(entry["line"], 6);
    EXPECT_EQ(entry["value"], "c10d");
    EXPECT_EQ(entry["outcome"], "no effect");
    found = true;
  }
  EXPECT_TRUE(found);
}

TEST_F(ExplainCommand, WrongFilesAreUsageErrors) {
  for (const char* command : {"explain", "plan", "train"}) {
    const std::string file = write("a.yaml", "distributed_type: FSDP\nnum_proceses: 2\n");
    std::vector<std::string> arguments{command};
    if (std::string(command) != "explain") arguments.emplace_back("--config");
    arguments.push_back(file);
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_EQ(result.err, "tessera: error: " + file +
                              ":2: num_proceses: unknown key; did you mean 'num_processes'?\n");
  }
  EXPECT_EQ(run({"explain"}).exit_code, 2);
  EXPECT_THAT(run({"explain"}).err, HasSubstr("nothing to explain"));
}

constexpr const char* kRefused =
    "distributed_type: FSDP\n"
    "num_processes: 2\n"
    "main_proces_port: 1\n"
    "fsdp_config:\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_ignored_modules: lm_head\n"
    "  fsdp_activation_checkpointing: true\n";

TEST_F(ExplainCommand, TellsEveryKeyOfARefusedFile) {
  const std::string file = write("a.yaml", kRefused);
  const ProgramResult result = run({"explain", file, "--all"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("2 keys need a change"), HasSubstr(file + ":3: main_pro"),
                                HasSubstr(file + ":6: fsdp_config.fsdp_ignored_modules")));
  EXPECT_THAT(
      unwrapped(result.out),
      AllOf(HasSubstr("main_proces_port: 1\n      -> refused: unknown key; did you mean 'main_"),
            HasSubstr("-> refused: 'lm_head' asks for leaving modules out of the sharding"),
            HasSubstr("remove it"), HasSubstr("-> wrap = layer"), HasSubstr("-> recompute = full"),
            HasSubstr("-> ranks = 2")));
  EXPECT_THAT(result.out, Not(HasSubstr("effective settings")));
}

TEST_F(ExplainCommand, TellsARefusedFileInJson) {
  const std::string file = write("a.yaml", kRefused);
  const ProgramResult result = run({"explain", file, "--json"});
  EXPECT_EQ(result.exit_code, 2);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_TRUE(json["settings"].is_null());
  std::map<std::string, std::string> outcomes;
  for (const auto& entry : json["files"][0]["entries"]) {
    outcomes[entry["key"]] = entry["outcome"];
    if (entry["key"] == "main_proces_port") {
      EXPECT_EQ(entry["line"], 3);
      EXPECT_THAT(entry["note"].get<std::string>(), HasSubstr("did you mean"));
    }
  }
  EXPECT_EQ(outcomes.at("main_proces_port"), "refused");
  EXPECT_EQ(outcomes.at("fsdp_config.fsdp_ignored_modules"), "refused");
  EXPECT_EQ(outcomes.at("fsdp_config.fsdp_activation_checkpointing"), "honoured");
  EXPECT_EQ(outcomes.at("num_processes"), "honoured");
}

TEST_F(ExplainCommand, AKeyThatDependsOnARefusedOneIsNotJudged) {
  const ProgramResult result =
      run({"explain", "--all",
           write("a.json", "{\"train_batch_size\": 8, \"gradient_accumulation_steps\": 0}")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr("train_batch_size: 8\n      -> not judged"));
}

TEST_F(ExplainCommand, AKeyThatIsRefusedHidesNoOther) {
  const std::string file = write("a.yaml",
                                 "distributed_type: FSPD\nnum_processes: 4\nmixed_precision: bf16\n"
                                 "fsdp_config:\n  fsdp_version: 2\n"
                                 "  fsdp_reshard_after_forward: FULL_SHARD\n"
                                 "  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
                                 "  fsdp_min_num_params: -5\n"
                                 "  fsdp_activation_checkpointing: true\n"
                                 "parallelism_config:\n  parallelism_config_tp_size: 2\n"
                                 "  parallelism_config_dp_replicate_size: 2\n");
  const ProgramResult result = run({"explain", file, "--json"});
  EXPECT_EQ(result.exit_code, 2);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["files"][0]["verdict"]["not_judged"], 0);
  EXPECT_EQ(json["files"][0]["verdict"]["to_change"], 4);
  for (const auto& entry : json["files"][0]["entries"]) {
    EXPECT_NE(entry["outcome"], "not judged") << entry;
    if (entry["key"] == "num_processes") {
      EXPECT_EQ(entry["settings"]["ranks"], 4);
    }
    if (entry["key"] == "mixed_precision") {
      EXPECT_EQ(entry["settings"]["reduce_dtype"], "bf16");
    }
  }
  const std::string fp16 = write("b.json",
                                 "{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true},\n"
                                 "\"communication_data_type\": \"fp32\"}");
  EXPECT_THAT(run({"explain", fp16, "--all"}).out, Not(HasSubstr("not judged")));
}

/// All lines but those that begin with a path, which may be long.
void expect_narrow(const std::string& text, const std::string& path) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(path) == std::string::npos) {
      EXPECT_LE(line.size(), 80U) << line;
    }
  }
}

TEST_F(ExplainCommand, BeginsWithAVerdictAndShowsWhatDiffers) {
  const std::string file = write("a.yaml", kFile);
  const ProgramResult good = run({"explain", file});
  ASSERT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(good.out.rfind(file + ", settings of Accelerate:", 0), 0U) << good.out;
  EXPECT_THAT(
      std::regex_replace(good.out, std::regex("\\s+"), " "),
      AllOf(HasSubstr("settings of Accelerate: 4 kept, 1 without effect, none to change"),
            HasSubstr("otherwise than under Accelerate line 4: fsdp_reshard_after_forward"),
            HasSubstr("settings that are not the defaults"),
            HasSubstr("strategy shard_grad_op line 4"), HasSubstr("--all' tells of every")));
  EXPECT_THAT(good.out, AllOf(Not(HasSubstr("num_processes")), Not(HasSubstr("beta1"))));
  expect_narrow(good.out, file);

  const std::string wrong = write("b.yaml", kRefused);
  const ProgramResult bad = run({"explain", wrong});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_EQ(bad.out.rfind(wrong + ", settings of Accelerate:", 0), 0U) << bad.out;
  EXPECT_THAT(std::regex_replace(bad.out, std::regex("\\s+"), " "),
              AllOf(HasSubstr("4 kept, 2 to change: main_proces_port, fsdp_ignored_modules"),
                    HasSubstr("line 3: main_proces_port -> main_process_port"),
                    HasSubstr("fsdp_config.fsdp_ignored_modules: lm_head -> left out")));
  expect_narrow(bad.out, wrong);
}

TEST_F(ExplainCommand, FixWritesTheNearestFile) {
  const std::string file = write("a.yaml",
                                 "# of last year\n"
                                 "distributed_type: FSDP  # shards\n"
                                 "num_proceses: 2\n"
                                 "mixed_precision: bf16   # on new GPUs\n"
                                 "fsdp_config:\n"
                                 "  fsdp_activation_checkpointing: true # too large\n"
                                 "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                                 "  fsdp_ignored_modules: lm_head\n");
  const ProgramResult result = run({"explain", file, "--fix", path("b.yaml")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(test::read_file(path("b.yaml")),
            "distributed_type: FSDP\n"
            "num_processes: 2\n"
            "mixed_precision: bf16\n"
            "fsdp_config:\n"
            "  fsdp_activation_checkpointing: true\n"
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n");
  EXPECT_THAT(result.out, AllOf(HasSubstr("written, with 2 changes"),
                                HasSubstr("num_proceses -> num_processes"),
                                HasSubstr("fsdp_config.fsdp_ignored_modules: lm_head (left out)"),
                                HasSubstr("comments of")));
  const ProgramResult trained = train({"--config", path("b.yaml"), "--data", write_text(),
                                       "--steps", "1", "--log", path("log.jsonl")});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(read_log("log.jsonl").at(0)["ranks"], 2);
  EXPECT_EQ(read_log("log.jsonl").at(0)["precision"], "bf16");

  const ProgramResult again = run({"explain", file, "--fix", path("b.yaml")});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("is there already"));
  const ProgramResult none = run({"explain", path("b.yaml"), "--fix", path("c.yaml")});
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_THAT(none.out, HasSubstr("needs no change"));
  EXPECT_EQ(test::read_file(path("c.yaml")), test::read_file(path("b.yaml")));
}

TEST_F(ExplainCommand, ExplainsAStrategy) {
  const ProgramResult result = run({"explain", "--no-default-config", "--strategy", "zero3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("full_shard: "), HasSubstr("sharded over shard"),
                                HasSubstr("tessera plan --strategy full_shard")));
  const ProgramResult json =
      run({"explain", "--no-default-config", "--strategy", "zero1", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["gradients"], "none");
}

TEST_F(ExplainCommand, TakesSgdLionAndTheNormOfTheirParameters) {
  const auto settings_of = [&](const std::string& name, const std::string& text) {
    const ProgramResult planned =
        run({"plan", "--format", "json", "--layers", "2", "--config", write(name, text)});
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    return nlohmann::json::parse(planned.out)["settings"];
  };
  const std::string begin =
      R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 8, "optimizer": )";
  const auto sgd = settings_of("sgd.json", begin + R"({"type": "sgd", "params": {"lr": 0.125,
      "momentum": 0.75, "nesterov": true, "dampening": 0, "weight_decay": 0.25,
      "max_grad_norm": 0.5}}})");
  EXPECT_EQ(sgd["optimizer"], "sgd");
  EXPECT_EQ(sgd["momentum"], 0.75);
  EXPECT_EQ(sgd["nesterov"], true);
  EXPECT_EQ(sgd["weight_decay"], 0.25);
  EXPECT_EQ(sgd["learning_rate"], 0.125);
  EXPECT_EQ(sgd["clip_norm"], 0.5);
  // DeepSpeed's, and PyTorch's for what it does not say.
  const auto plain = settings_of("plain.json", begin + R"({"type": "SGD"}})");
  EXPECT_EQ(plain["momentum"], 0.0);
  EXPECT_EQ(plain["nesterov"], false);
  EXPECT_EQ(plain["weight_decay"], 0.0);
  EXPECT_EQ(plain["clip_norm"], 0.0);
  const auto lion = settings_of("lion.json", begin + R"({"type": "lion", "params": {"lr": 0.125,
      "betas": [0.75, 0.875], "weight_decay": 0.25, "fp32_optimizer_states": true}}})");
  EXPECT_EQ(lion["optimizer"], "lion");
  EXPECT_EQ(lion["beta1"], 0.75);
  EXPECT_EQ(lion["beta2"], 0.875);
  EXPECT_EQ(lion["weight_decay"], 0.25);
  EXPECT_EQ(lion["learning_rate"], 0.125);
  const auto plain_lion = settings_of("plain_lion.json", begin + R"({"type": "Lion"}})");
  EXPECT_EQ(plain_lion["beta1"], 0.9);
  EXPECT_EQ(plain_lion["beta2"], 0.99);
  EXPECT_EQ(plain_lion["weight_decay"], 0.0);
  const auto both = settings_of("both.json", begin + R"({"type": "AdamW", "params":
      {"lr": 0.125, "max_grad_norm": 0.5}}, "gradient_clipping": 2.0})");
  EXPECT_EQ(both["clip_norm"], 2.0);

  const std::vector<std::pair<std::string, std::string>> refused{
      {R"({"type": "SGD", "params": {"betas": [0.9, 0.99]}})", "SGD has no such parameter"},
      {R"({"type": "SGD", "params": {"dampening": 0.5}})", "dampening"},
      {R"({"type": "SGD", "params": {"nesterov": true}})", "needs a momentum above 0"},
      {R"({"type": "Lion", "params": {"eps": 1e-8}})", "Lion has no such parameter"},
      {R"({"type": "Lion", "params": {"fp32_optimizer_states": false}})", "states in 16 bits"},
      {R"({"type": "AdamW", "params": {"momentum": 0.9}})", "AdamW has no such parameter"}};
  for (const auto& [optimizer, why] : refused) {
    const ProgramResult result =
        run({"plan", "--layers", "2", "--config", write("refused.json", begin + optimizer + "}")});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(why));
  }
}

/// In files of our own settings, too, the flags of other programs are keys.
TEST_F(ExplainCommand, TakesFlagsOfOtherProgramsForKeys) {
  const std::string file = write("own.yaml",
                                 "layers: 2\nmax_grad_norm: 0.5\nadam_beta2: 0.75\n"
                                 "dp_replicate_size: 1\n");
  const ProgramResult planned = run({"plan", "--format", "json", "--config", file});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const auto settings = nlohmann::json::parse(planned.out)["settings"];
  EXPECT_EQ(settings["clip_norm"], 0.5);
  EXPECT_EQ(settings["beta2"], 0.75);
  EXPECT_EQ(settings["replicas"], 1);
  const ProgramResult twice =
      run({"plan", "--config", write("twice.yaml", "layers: 2\nclip_norm: 1\nclip_grad: 1\n")});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err, HasSubstr("'clip_norm' is there twice"));
}

TEST_F(ExplainCommand, FixesFilesOfDeepSpeedAndSaysThatCommentsAreLost) {
  const std::string file = write(
      "ds.json",
      "{ // of a GPU\n\"train_batch_size\": 8, \"gradient_accumulation_steps\": 3,\n"
      "\"train_micro_batch_size_per_gpu\": 2,\n"
      "\"fp16\": {\"enabled\": true, \"loss_scale\": 0}, \"wandb\": {\"enabled\": true},\n"
      "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}},\n"
      "\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"lr\": 0.001, \"max_coeff\": 2}}}\n");
  const ProgramResult result = run({"explain", file, "--fix", path("new.json"), "--ranks", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("comments"));
  const auto fixed = nlohmann::json::parse(test::read_file(path("new.json")));
  EXPECT_EQ(fixed["train_batch_size"], 12);
  EXPECT_EQ(fixed["fp16"]["enabled"], true);
  EXPECT_EQ(fixed["zero_optimization"]["offload_param"]["device"], "nvme");
  EXPECT_EQ(fixed["optimizer"]["type"], "AdamW");
  EXPECT_EQ(fixed["optimizer"]["params"].dump(), "{\"lr\":0.001}");
  EXPECT_TRUE(fixed.contains("wandb"));  // a note
  const ProgramResult planned = run(
      {"plan", "--format", "json", "--layers", "2", "--ranks", "2", "--config", path("new.json")});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_EQ(nlohmann::json::parse(planned.out)["settings"]["strategy"], "full_shard");
}

TEST_F(ExplainCommand, FixesWhatIsMissing) {
  const std::string file =
      write("a.yaml", "dynamo_config:\n  dynamo_mode: default\nmixed_precision: bf16\n");
  const ProgramResult result = run({"explain", file, "--fix", path("b.yaml"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["fixed"]["changes"].size(), 1U);
  EXPECT_THAT(test::read_file(path("b.yaml")), HasSubstr("distributed_type: 'NO'\n"));
}

TEST_F(ExplainCommand, TrainsWithAForeignFileAndSaysWhatItTranslated) {
  const std::string file = write("a.yaml", kFile);
  const ProgramResult result =
      train({"--config", file, "--data", write_text(), "--steps", "2", "--log", path("log.jsonl")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("note: " + file + ":4: fsdp_config.fsdp_reshard"),
                                HasSubstr("without effect here"), HasSubstr("rdzv_backend"),
                                Not(HasSubstr(file + ":6: rdzv_backend"))));
  EXPECT_EQ(read_log("log.jsonl").at(0)["strategy"], "shard_grad_op");
  if (read_log("log.jsonl").at(0)["device"] != "cuda") {
    EXPECT_THAT(result.out, HasSubstr(file + ":1: distributed_type: FSDP asks for GPUs; there is "
                                             "none, so the run is on the CPU"));
  }
  EXPECT_EQ(read_log("log.jsonl").at(0)["ranks"], 2);
}

/// Megatron-LM's stages in a file of Accelerate's, in Megatron-LM's flags, torchtitan's and ours.
TEST_F(ExplainCommand, PipelinesOfOtherProgramsTrainAsOurs) {
  const std::string data = write_text();
  const auto losses = [&](std::vector<std::string> flags) {
    std::filesystem::remove(path("log.jsonl"));
    flags.insert(flags.end(), {"--data", data, "--steps", "2", "--log", path("log.jsonl")});
    const ProgramResult result = train(flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<nlohmann::json> all;
    if (result.exit_code != 0) return all;
    for (const nlohmann::json& line : read_log("log.jsonl")) {
      if (line.contains("loss")) all.push_back(line["loss"]);
    }
    return all;
  };
  const auto ours = losses({"--no-default-config", "--ranks", "4", "--pipeline", "2",
                            "--accumulate", "3", "--strategy", "zero1", "--clip-norm", "0.5"});
  ASSERT_GE(ours.size(), 2U);
  const std::string file = write("m.yaml",
                                 "distributed_type: MEGATRON_LM\nnum_processes: 4\n"
                                 "mixed_precision: 'no'\nmegatron_lm_config:\n"
                                 "  megatron_lm_pp_degree: 2\n"
                                 "  megatron_lm_num_micro_batches: 3\n"
                                 "  megatron_lm_recompute_activations: true\n"
                                 "  megatron_lm_use_distributed_optimizer: true\n"
                                 "  megatron_lm_gradient_clipping: 0.5\n");
  EXPECT_EQ(losses({"--config", file}), ours);
  EXPECT_EQ(losses({"--no-default-config", "--world-size", "4", "--pipeline-model-parallel-size",
                    "2", "--tensor-model-parallel-size", "1", "--num-micro-batches", "3",
                    "--use-distributed-optimizer", "--clip-grad", "0.5"}),
            ours);
  EXPECT_EQ(losses({"--no-default-config", "--ranks", "4", "--parallelism.pipeline_parallel_degree",
                    "2", "--parallelism.pipeline_parallel_schedule", "GPipe", "--accumulate", "3",
                    "--strategy", "zero1", "--clip-norm", "0.5"}),
            ours);
}

TEST_F(ExplainCommand, StagesOfMegatronAreOurs) {
  const auto stages = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"plan", "--format", "json", "--layers", "4"});
    const ProgramResult result = run(flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (result.exit_code != 0) return std::string();
    const auto settings = nlohmann::json::parse(result.out)["settings"];
    return settings["pipeline_split"].get<std::string>() + " " + settings["virtual_stages"].dump() +
           " " + settings["pipeline_schedule"].get<std::string>();
  };
  const auto of_two = [&](const std::string& flag, const std::string& value) {
    return stages({"--no-default-config", "--ranks", "2", "--pipeline-model-parallel-size", "2",
                   flag, value});
  };
  EXPECT_EQ(of_two("--num-layers-per-virtual-pipeline-stage", "1"), "2,1,1,2 2 interleaved");
  EXPECT_EQ(of_two("--num-layers-per-virtual-pipeline-stage", "2"), "3,3 1 1f1b");
  EXPECT_EQ(of_two("--pipeline-model-parallel-layout", "E|t|(t|)*1,ttL"), "1,1,1,3 2 interleaved");
  EXPECT_EQ(of_two("--pipeline-model-parallel-layout", "Et|t*3L"), "2,4 1 1f1b");
  EXPECT_EQ(of_two("--decoder-first-pipeline-num-layers", "1"), "2,4 1 1f1b");
  EXPECT_EQ(of_two("--decoder-last-pipeline-num-layers", "3"), "2,4 1 1f1b");
  const std::string file = write("m.yaml",
                                 "distributed_type: MEGATRON_LM\nnum_processes: 2\n"
                                 "megatron_lm_config:\n  megatron_lm_pp_degree: 2\n"
                                 "  megatron_lm_num_micro_batches: 3\n"
                                 "  megatron_lm_decoder_last_pipeline_num_layers: 1\n");
  EXPECT_EQ(stages({"--config", file}), "4,2 1 1f1b");
  const ProgramResult told = run({"explain", "--all", file});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("last_rank_layers = 1: blocks of the last pipeline rank"));
}

TEST_F(ExplainCommand, FlagsOfPipelinesThatAreNotOursAreAnswered) {
  const auto error = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"plan", "--no-default-config"});
    const ProgramResult result = run(flags);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error({"--layers", "4", "--ranks", "2", "--pipeline", "2",
                     "--num-layers-per-virtual-pipeline-stage", "3"}),
              HasSubstr("is 3, which does not divide the 2 blocks of a pipeline rank (4 blocks on "
                        "2); choose a divisor, or write the layers of each stage, the embedding "
                        "and the head among them: --pipeline-split 4,5,2"));
  EXPECT_THAT(error({"--pipeline-model-parallel-layout", "Et|m|L"}),
              HasSubstr("--pipeline-model-parallel-layout: 'Et|m|L' has a layer of multi-token"));
  EXPECT_THAT(error({"--microbatch-group-size-per-virtual-pipeline-stage", "2"}),
              HasSubstr("as many micro-steps as there are pipeline ranks"));
  EXPECT_THAT(error({"--tensor-model-parallel-size", "2"}), HasSubstr("not split in other ways"));
  EXPECT_THAT(error({"--global-batch-size", "64"}), HasSubstr("--ranks / --pipeline"));
  EXPECT_THAT(error({"--parallelism.pipeline_parallel_schedule", "DualPipeV"}),
              HasSubstr("--pipeline-schedule FILE.csv"));
}

TEST_F(ExplainCommand, TheDefaultFileIsNeverUsedInSilence) {
  std::filesystem::create_directories(path("hf/accelerate"));
  const std::string file = write("hf/accelerate/default_config.yaml", kFile);
  const ProgramResult used = run({"plan", "--format", "json", "--layers", "2"});
  ASSERT_EQ(used.exit_code, 0) << used.err;
  EXPECT_THAT(used.err, HasSubstr("note: settings of " + file));
  EXPECT_EQ(nlohmann::json::parse(used.out)["settings"]["ranks"], 2);

  const ProgramResult flags = run({"plan", "--format", "json", "--ranks", "4"});
  ASSERT_EQ(flags.exit_code, 0) << flags.err;
  EXPECT_EQ(nlohmann::json::parse(flags.out)["settings"]["ranks"], 4);
  EXPECT_EQ(nlohmann::json::parse(flags.out)["settings"]["strategy"], "shard_grad_op");

  // Always said, even where everything else is quiet.
  const ProgramResult quiet = train({"--data", write_text(), "--steps", "1", "--quiet"});
  EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_EQ(std::count(quiet.err.begin(), quiet.err.end(), '\n'), 1) << quiet.err;
  EXPECT_THAT(quiet.err, HasSubstr(file));

  const ProgramResult off = run({"plan", "--format", "json", "--no-default-config"});
  EXPECT_EQ(nlohmann::json::parse(off.out)["settings"]["ranks"], 1);
  EXPECT_EQ(off.err, "");
  const std::string own = write("own.json", "{\"ranks\": 3}");
  const ProgramResult other = run({"plan", "--format", "json", "--config", own});
  EXPECT_EQ(nlohmann::json::parse(other.out)["settings"]["ranks"], 3);
  EXPECT_EQ(other.err, "");
}

}  // namespace
}  // namespace tessera
