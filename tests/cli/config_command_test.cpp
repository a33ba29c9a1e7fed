#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "cli/program.h"
#include "cli/pseudo_terminal.h"

namespace tessera {
namespace {

using test::ProgramResult;
using test::PseudoTerminal;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string lines(const std::vector<std::string>& answers) {
  std::string text;
  for (const std::string& answer : answers) text += answer + "\n";
  return text;
}

class ConfigCommand : public test::ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    setenv("HF_HOME", path("home").c_str(), 1);  // no file of the person who tests
  }

  ProgramResult answer(const std::string& file, const std::vector<std::string>& answers) {
    give_input(lines(answers));
    return run({"config", "--config-file", path(file)});
  }

  /// The settings that a file means here; it must be one that can be used.
  std::string explain(const std::string& file) {
    const ProgramResult result = run({"explain", path(file), "--all"});
    EXPECT_EQ(result.exit_code, 0) << result.err << read_file(path(file));
    return result.out;
  }

  /// Nothing but what the test itself wrote there.
  bool nothing_was_written() {
    for (const auto& entry : std::filesystem::directory_iterator(path(""))) {
      const std::string name = entry.path().filename();
      if (name != "stdin" && name != "stdout" && name != "stderr") return false;
    }
    return true;
  }
};

TEST_F(ConfigCommand, DdpFileIsWhatAccelerateWrites) {
  const ProgramResult result =
      answer("a.yaml", {"multi-GPU", "", "", "", "", "4", "0,1,2,3", "bf16"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(read_file(path("a.yaml")),
            "compute_environment: LOCAL_MACHINE\n"
            "debug: false\n"
            "distributed_type: MULTI_GPU\n"
            "enable_cpu_affinity: false\n"
            "gpu_ids: '0,1,2,3'\n"
            "machine_rank: 0\n"
            "main_training_function: main\n"
            "mixed_precision: bf16\n"
            "num_machines: 1\n"
            "num_processes: 4\n"
            "use_cpu: false\n");
  EXPECT_THAT(result.out, HasSubstr("configuration saved at " + path("a.yaml") +
                                    "\n'tessera explain " + path("a.yaml") + "' tells"));
  EXPECT_THAT(result.out, Not(HasSubstr("\033")));
  EXPECT_THAT(explain("a.yaml"), HasSubstr("distributed_type: MULTI_GPU\n      -> strategy = "
                                           "no_shard"));
}

/// What is answered, what must stand in the file and what it must mean.
struct Path {
  std::string name;
  std::vector<std::string> answers;
  std::vector<std::string> written;
  std::vector<std::string> meant;
};

class ConfigPath : public ConfigCommand, public ::testing::WithParamInterface<Path> {};

TEST_P(ConfigPath, IsReadBack) {
  const ProgramResult result = answer("a.yaml", GetParam().answers);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const std::string file = "\n" + read_file(path("a.yaml"));
  for (const std::string& line : GetParam().written) EXPECT_THAT(file, HasSubstr(line + "\n"));
  const std::string explained = explain("a.yaml");
  for (const std::string& text : GetParam().meant) EXPECT_THAT(explained, HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(
    Paths, ConfigPath,
    ::testing::Values(
        Path{.name = "OneProcess",
             .answers = {"No distributed training", "yes", "", ""},
             .written = {"\ndistributed_type: 'NO'", "\nuse_cpu: true", "\nnum_processes: 1",
                         "\nmixed_precision: 'no'"},
             .meant = {"ranks = 1", "device = cpu", "precision = fp32"}},
        Path{.name = "OneGpu",
             .answers = {"No distributed training", "no", "", "1", "bf16"},
             .written = {"\ngpu_ids: '1'", "\nuse_cpu: false", "\nnum_processes: 1"},
             .meant = {"ranks = 1", "precision = bf16"}},
        Path{.name = "OneProcessDeepSpeed",
             .answers = {"No distributed training", "yes", "yes", "", "1", "4", "", "yes", "2", ""},
             .written = {"\ndistributed_type: DEEPSPEED", "\nuse_cpu: true", "\n  zero_stage: 1",
                         "\n  zero3_init_flag: true", "\nnum_processes: 2"},
             .meant = {"strategy = zero1", "accumulate = 4", "ranks = 2", "device = cpu"}},
        Path{.name = "Cpu",
             .answers = {"multi-CPU", "", "yes", "", "", "3", ""},
             .written = {"\ndistributed_type: MULTI_CPU", "\nuse_cpu: true", "\ndebug: true",
                         "\nnum_processes: 3"},
             .meant = {"ranks = 3", "device = cpu", "check_collectives = true"}},
        Path{
            .name = "Fsdp1",
            .answers = {"2",
                        "",
                        "",
                        "no",
                        "yes",
                        "1",
                        "SHARD_GRAD_OP",
                        "yes",
                        "",
                        "",
                        "GPT2Block,Block",
                        "BACKWARD_POST",
                        "2",
                        "yes",
                        "",
                        "no",
                        "no",
                        "yes",
                        "4",
                        "bf16"},
            .written = {"\ndistributed_type: FSDP", "\n  fsdp_version: 1",
                        "\n  fsdp_sharding_strategy: SHARD_GRAD_OP",
                        "\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
                        "\n  fsdp_transformer_layer_cls_to_wrap: GPT2Block,Block",
                        "\n  fsdp_backward_prefetch: BACKWARD_POST",
                        "\n  fsdp_state_dict_type: SHARDED_STATE_DICT",
                        "\n  fsdp_forward_prefetch: true", "\n  fsdp_offload_params: true",
                        "\n  fsdp_cpu_ram_efficient_loading: false",
                        "\n  fsdp_sync_module_states: false",
                        "\n  fsdp_activation_checkpointing: true"},
            .meant = {"strategy = shard_grad_op", "wrap = layer", "prefetch_backward = 0",
                      "recompute = full", "ranks = 4", "offload_parameters = host",
                      "offload_optimizer = host"}},
        Path{.name = "Fsdp2",
             .answers = {"multi-GPU", "", "", "", "yes", "", "no", "", "SIZE_BASED_WRAP", "1e8", "",
                         "", "", "yes", "2", "3", "", ""},
             .written = {"\n  fsdp_version: 2", "\n  fsdp_reshard_after_forward: false",
                         "\n  fsdp_min_num_params: 100000000",
                         "\n  fsdp_state_dict_type: SHARDED_STATE_DICT",
                         "\n  parallelism_config_dp_replicate_size: 2",
                         "\n  parallelism_config_dp_shard_size: 3", "\nnum_processes: 6"},
             .meant = {"strategy = hybrid_shard_zero2", "replicas = 2", "ranks = 6"}},
        Path{.name = "Fsdp2OnCpus",
             .answers = {"multi-CPU", "", "", "", "yes", "2", "", "", "", "yes", "", "", "", "", "",
                         ""},
             .written = {"\ndistributed_type: FSDP", "\nuse_cpu: true", "\nnum_processes: 2"},
             .meant = {"strategy = full_shard", "device = cpu"}},
        Path{.name = "DeepSpeed",
             .answers = {"multi-GPU", "", "", "yes", "", "3", "cpu", "", "4", "yes", "0.5", "",
                         "yes", "8", "bf16"},
             .written = {"\ndistributed_type: DEEPSPEED", "\n  zero_stage: 3",
                         "\n  gradient_accumulation_steps: 4", "\n  gradient_clipping: 0.5",
                         "\n  offload_optimizer_device: cpu", "\n  offload_param_device: none",
                         "\n  zero3_init_flag: true"},
             .meant = {"strategy = full_shard", "accumulate = 4", "clip_norm = 0.5",
                       "offload_optimizer = host"}},
        Path{.name = "DeepSpeedOnDisks",
             .answers = {"multi-GPU", "", "", "yes", "", "3", "nvme", "nvme", "/scratch", "/other",
                         "", "4", "", "", "", "8", "bf16"},
             .written = {"\n  offload_optimizer_device: nvme", "\n  offload_param_device: nvme",
                         "\n  offload_param_nvme_path: /scratch",
                         "\n  offload_optimizer_nvme_path: /scratch"},
             .meant = {"offload_optimizer = disk", "offload_parameters = disk",
                       "offload_path = /scratch"}},
        Path{.name = "SeveralMachines",
             .answers = {"multi-GPU", "2", "0", "10.0.0.1", "29501", "no",
                         "c10d",      "",  "",  "yes",      "1",     "HYBRID_SHARD",
                         "",          "",  "",  "",         "",      "",
                         "",          "",  "",  "",         "8",     ""},
             .written = {"\nnum_machines: 2", "\nmachine_rank: 0", "\nmain_process_ip: '10.0.0.1'",
                         "\nmain_process_port: 29501", "\nsame_network: false",
                         "\nrdzv_backend: c10d", "\n  fsdp_sync_module_states: true"},
             .meant = {"strategy = hybrid_shard", "replicas = 2"}}),
    [](const auto& path) { return path.param.name; });

TEST_F(ConfigCommand, DeepSpeedFileDecidesAlone) {
  const std::string settings_file = write(
      "ds.json", R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}})");
  const ProgramResult result = answer(
      "a.yaml", {"multi-GPU", "", "", "yes", "yes", path("absent.json"), settings_file, "", "4"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("There is no file '" + path("absent.json") + "'"));
  EXPECT_THAT(read_file(path("a.yaml")),
              AllOf(HasSubstr("deepspeed_config_file: " + settings_file),
                    Not(HasSubstr("zero_stage")), Not(HasSubstr("mixed_precision"))));
  EXPECT_THAT(explain("a.yaml"), HasSubstr("ranks = 4"));
}

TEST_F(ConfigCommand, WrongAnswersAreToldAndAskedAgain) {
  const ProgramResult result =
      answer("a.yaml",
             {"multi-QPU", "multi-GPU", "0",   "1.5", "1",   "maybe", "no",      "no",
              "yes",       "2",         "yes", "",    "",    "",      "T5Block", "Block, gptblock",
              "Block",     "",          "",    "",    "yes", "2",     "4",       "7",
              "8",         "fp8",       "no"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const char* text :
       {"'multi-QPU' is not among the choices; enter one of No distributed training, multi-CPU, "
        "multi-GPU, or an index from 0 to 2\n",
        "Please enter an integer from 1 to 1048576, not '0'.\n", "to 1048576, not '1.5'.\n",
        "Please enter yes or no.\n",
        "There is no layer class 'T5Block' here; a layer is called GPT2Block, ",
        "There is no layer class 'gptblock' here", "The mesh of 2 x 4 has 8 ranks; enter 8",
        "'fp8' is not among the choices; enter one of no, fp16, bf16"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
  EXPECT_THAT(explain("a.yaml"), HasSubstr("strategy = hybrid_shard"));
}

TEST_F(ConfigCommand, GpusMustBeEnoughAndDifferent) {
  const ProgramResult result = answer(
      "a.yaml", {"multi-GPU", "", "", "", "", "2", "0,,1", "0,0", "1", "GPU 1", "1,0", "no"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const char* text : {"'' is no GPU", "names GPU 0 twice", "'GPU 1' is no GPU",
                           "That is 1 GPU for 2 processes on this machine"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
  EXPECT_THAT(read_file(path("a.yaml")), HasSubstr("gpu_ids: '1,0'\n"));
}

TEST_F(ConfigCommand, TextIsPlain) {
  const ProgramResult result = answer(
      "a.yaml", {"multi-CPU", "2", "0", "node\x01", "\x1b[A", "node0", "", "", "", "", "", "", ""});
  EXPECT_THAT(result.out, HasSubstr("Please enter plain text, without control characters."));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(read_file(path("a.yaml")), HasSubstr("main_process_ip: node0\n"));
}

TEST_F(ConfigCommand, AnswersThatNeverEndLeaveNothing) {
  std::vector<std::string> wrong(1000, "what?");
  const ProgramResult menu = answer("a.yaml", wrong);
  EXPECT_EQ(menu.exit_code, 2);
  EXPECT_THAT(menu.err, HasSubstr("none of 20 answers was right for 'Which type of machine"));
  wrong.front() = "multi-GPU";
  const ProgramResult line = answer("a.yaml", wrong);
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.err, HasSubstr("none of 20 answers was right for 'How many different machines"));
  give_input(std::string(10'000'000, 'y'));
  const ProgramResult endless = run({"config", "--config-file", path("a.yaml")});
  EXPECT_EQ(endless.exit_code, 2);
  EXPECT_THAT(endless.err, HasSubstr("longer than 4096 characters; nothing was written"));
  EXPECT_TRUE(nothing_was_written());
}

TEST_F(ConfigCommand, EndOfInputLeavesNothing) {
  // However far it gets.
  const std::vector<std::string> answers{"multi-GPU", "", "", "", "yes", "", "", "", "",
                                         "",          "", "", "", "",    "", "", ""};
  std::size_t enough = 0;
  while (true) {
    SCOPED_TRACE(enough);
    ASSERT_LE(enough, answers.size());
    const ProgramResult result =
        answer("a.yaml", {answers.begin(), answers.begin() + static_cast<std::ptrdiff_t>(enough)});
    if (result.exit_code == 0) break;
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("nothing was written"));
    EXPECT_TRUE(nothing_was_written());
    ++enough;
  }
  EXPECT_GT(enough, 10U);
  EXPECT_FALSE(nothing_was_written());
}

TEST_F(ConfigCommand, WritesJsonIfTheNameSaysSo) {
  ASSERT_EQ(answer("a.json", {"multi-CPU", "", "", "", "", "", ""}).exit_code, 0);
  const auto document = nlohmann::json::parse(read_file(path("a.json")));
  EXPECT_EQ(document.at("distributed_type"), "MULTI_CPU");
  EXPECT_EQ(document.at("mixed_precision"), "no");
  EXPECT_EQ(document.at("num_processes"), 2);
  explain("a.json");
}

TEST_F(ConfigCommand, DefaultPlaceIsAccelerates) {
  give_input(lines({"No distributed training", "yes", "", ""}));
  const ProgramResult result = run({"config"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string file = path("home/accelerate/default_config.yaml");
  EXPECT_THAT(result.out, HasSubstr("file: " + file + ", Accelerate's default"));
  EXPECT_THAT(read_file(file), HasSubstr("distributed_type: 'NO'"));
}

// Accelerate may have written it, and other programs read it.
TEST_F(ConfigCommand, AScriptReplacesAFileOnlyIfItSaysSo) {
  const std::string file = write("a.yaml", "distributed_type: FSDP\n");
  const ProgramResult unasked = answer("a.yaml", {"multi-CPU", "", "", "", "", "", ""});
  EXPECT_EQ(unasked.exit_code, 2);
  EXPECT_THAT(unasked.err, HasSubstr(file + " is there already; give --overwrite to replace it"));
  EXPECT_EQ(read_file(file), "distributed_type: FSDP\n");
  give_input(lines({"multi-CPU", "", "", "", "", "", ""}));
  const ProgramResult asked = run({"config", "--config-file", file, "--overwrite"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(read_file(file), HasSubstr("distributed_type: MULTI_CPU"));
  EXPECT_EQ(run({"config", "default", "--config-file", file, "--overwrite"}).exit_code, 0);
  EXPECT_THAT(read_file(file), Not(HasSubstr("debug: true")));
}

TEST_F(ConfigCommand, RefusesAPlaceBeforeItAsks) {
  write("file", "");
  for (const char* place : {"file/a.yaml", ""}) {
    const ProgramResult result = answer(place, {});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr("cannot be written ("), HasSubstr("--config-file")));
    EXPECT_THAT(result.out, Not(HasSubstr("?")));
  }
}

TEST_F(ConfigCommand, WritesIntoAPipeAndLeavesItThere) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  const ProgramResult result = answer("pipe", {"multi-GPU", "", "", "", "", "4", "all", "bf16"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));
  std::string text(4096, '\0');
  const ssize_t bytes = read(reader, text.data(), text.size());
  close(reader);
  ASSERT_GT(bytes, 0);
  EXPECT_THAT(text, HasSubstr("distributed_type: MULTI_GPU\n"));
}

TEST_F(ConfigCommand, DefaultAsksNothingAndOverwritesNothing) {
  const ProgramResult result =
      run({"config", "default", "--config_file", path("a.yaml"), "--mixed_precision", "bf16"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string before = read_file(path("a.yaml"));
  EXPECT_THAT(before, HasSubstr("mixed_precision: bf16\n"));
  explain("a.yaml");
  const ProgramResult again = run({"config", "default", "--config-file", path("a.yaml")});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("configuration already exists at " + path("a.yaml")));
  EXPECT_EQ(read_file(path("a.yaml")), before);
  const ProgramResult fp8 = run({"config", "default", "--mixed-precision", "fp8"});
  EXPECT_EQ(fp8.exit_code, 2);
  EXPECT_THAT(fp8.err, HasSubstr("must be no, fp16 or bf16"));
}

TEST_F(ConfigCommand, UpdateAddsWhatIsMissing) {
  const std::string before =
      "# for the lab's machine\nnum_processes: 4  # all\ndistributed_type: FSDP\nfsdp_config:\n"
      "  offload_params: false\n  fsdp_version: 2";
  const std::string file = write("a.yaml", before);
  const ProgramResult result = run({"config", "update", "--config_file", file});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(file), before +
                                 "\ncompute_environment: LOCAL_MACHINE\n"
                                 "debug: false\n"
                                 "enable_cpu_affinity: false\n"
                                 "machine_rank: 0\n"
                                 "main_training_function: main\n"
                                 "mixed_precision: 'no'\n"
                                 "num_machines: 1\n"
                                 "use_cpu: false\n");
  EXPECT_THAT(result.out, HasSubstr("added: compute_environment, debug, enable_cpu_affinity, "));
  explain("a.yaml");
  const ProgramResult again = run({"config", "update", "--config_file", file});
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_THAT(again.out, HasSubstr("lacks nothing; it stays as it is"));
}

TEST_F(ConfigCommand, UpdateSaysThatCommentsAreLost) {
  // Keys cannot be added behind these.
  for (const char* text : {"{distributed_type: FSDP}  # all in one line\n",
                           "  distributed_type: FSDP  # two spaces before\n",
                           "---\ndistributed_type: FSDP # an end follows\n...\n"}) {
    SCOPED_TRACE(text);
    const std::string file = write("a.yaml", text);
    const ProgramResult result = run({"config", "update", "--config_file", file});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("without the comments that it may have had"));
    EXPECT_THAT(read_file(file), HasSubstr("\ndistributed_type: FSDP\nenable_cpu_affinity: "));
    explain("a.yaml");
  }
  const std::string file = write("a.json", R"({"distributed_type": "FSDP"})");
  const ProgramResult result = run({"config", "update", "--config_file", file});
  EXPECT_THAT(result.out, Not(HasSubstr("comments")));
  EXPECT_EQ(nlohmann::json::parse(read_file(file)).at("machine_rank"), 0);
}

TEST_F(ConfigCommand, UpdateLeavesJudgingToARun) {
  const std::string file =
      write("a.yaml", "distributed_type: MULTI_GPU\nmixed_precision: fp16\nnum_processes: 4\n");
  const ProgramResult result = run({"config", "update", "--config_file", file});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(read_file(file),
              AllOf(HasSubstr("mixed_precision: fp16\n"), HasSubstr("\nnum_machines: 1\n")));
}

TEST_F(ConfigCommand, UpdateNamesWhatIsWrong) {
  const ProgramResult absent = run({"config", "update", "--config-file", path("a.yaml")});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_THAT(absent.err, AllOf(HasSubstr("there is no config file at " + path("a.yaml")),
                                HasSubstr("write one with 'tessera config'")));
  const std::string own = write("own.yaml", "ranks: 2\n");
  const ProgramResult other = run({"config", "update", "--config-file", own});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("has settings of Tessera"));
  EXPECT_EQ(read_file(own), "ranks: 2\n");
}

TEST_F(ConfigCommand, UnknownWordsGetASuggestion) {
  EXPECT_THAT(run({"config", "updat"}).err, HasSubstr("did you mean 'update'?"));
  const ProgramResult flag = run({"config", "default", "--mixed-precison", "no"});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_THAT(flag.err, HasSubstr("did you mean '--mixed-precision'?"));
}

TEST_F(ConfigCommand, ADefaultFileThatNoRunCanUseIsNamedWithTheRemedy) {
  const std::string file = path("home/accelerate/default_config.yaml");
  std::filesystem::create_directories(path("home/accelerate"));
  write("home/accelerate/default_config.yaml",
        "distributed_type: 'NO'\nmixed_precision: int8\nnum_processes: 1\n");
  const std::string data = write_text();
  for (const bool launched : {false, true}) {
    std::vector<std::string> arguments{"train", "--data", data, "--steps", "1", "--quiet"};
    if (launched) arguments.insert(arguments.begin(), {"launch", "--"});
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err,
                AllOf(HasSubstr(file + ":2: mixed_precision: "),
                      HasSubstr("that is Accelerate's default file, which is read where no "
                                "--config is given: change it, or give --no-default-config")));
  }
  const ProgramResult without = train({"--data", data, "--steps", "1", "--no-default-config"});
  EXPECT_EQ(without.exit_code, 0) << without.err;
  // A file that was named is nobody's default.
  const ProgramResult named = train({"--data", data, "--config", file});
  EXPECT_THAT(named.err, Not(HasSubstr("default file")));
  // `explain` still tells of every key.
  EXPECT_THAT(run({"explain", "--all"}).out, HasSubstr("num_processes"));
}

constexpr const char* kDown = "\033[B";
constexpr const char* kUp = "\033[A";

class ConfigTerminal : public ConfigCommand {
 protected:
  PseudoTerminal start() {
    return PseudoTerminal({TESSERA_PROGRAM, "config", "--config-file", path("a.yaml")});
  }
  /// Answers each question by its default, with `key`. False if one is not shown.
  static bool takes_defaults(PseudoTerminal& terminal, std::initializer_list<const char*> questions,
                             const char* key = "\n") {
    return std::ranges::all_of(questions, [&](const char* question) {
      const bool shown = terminal.shows(question);
      if (shown) terminal.type(key);
      return shown;
    });
  }
};

TEST_F(ConfigTerminal, ArrowKeysMoveThroughMenus) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.shows("Which type of machine are you using?")) << terminal.shown();
  ASSERT_TRUE(terminal.shows("2. multi-GPU"));
  terminal.type("0");  // wherever this machine begins
  ASSERT_TRUE(terminal.shows("\033[32m> 0. No distributed training"));
  terminal.type(kUp);  // around
  ASSERT_TRUE(terminal.shows("> 2. multi-GPU"));
  terminal.type(std::string("k") + kDown + "\r");
  ASSERT_TRUE(terminal.shows("How many different machines"));
  EXPECT_FALSE(terminal.is_as_before());  // no key is shown but those that the answer takes
  terminal.type("many\n");
  ASSERT_TRUE(terminal.shows("Please enter an integer from 1 to 1048576, not 'many'."));
  ASSERT_TRUE(takes_defaults(
      terminal, {"How many different machines", "Should distributed operations", "use DeepSpeed?"}))
      << terminal.shown();
  ASSERT_TRUE(terminal.shows("use FullyShardedDataParallel? [yes/NO]: "));
  terminal.type("yes\n");
  ASSERT_TRUE(terminal.shows("1. 2"));
  terminal.type("k\r");
  ASSERT_TRUE(terminal.shows("4. HYBRID_SHARD_ZERO2"));
  terminal.type("jj3\r");
  ASSERT_TRUE(terminal.shows("offload parameters")) << terminal.shown();
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows("auto wrap policy?"));
  ASSERT_TRUE(terminal.shows("2. NO_WRAP"));
  terminal.type(std::string(kDown) + kDown + "\r");
  ASSERT_TRUE(takes_defaults(terminal, {"BACKWARD_POST", "LOCAL_STATE_DICT"}, "\r"))
      << terminal.shown();
  ASSERT_TRUE(takes_defaults(
      terminal, {"forward prefetch", "use_orig_params", "CPU RAM", "activation checkpointing"}))
      << terminal.shown();
  ASSERT_TRUE(terminal.shows("How many GPU(s) should be used for distributed training? ["));
  terminal.type("4\n");
  ASSERT_TRUE(terminal.shows("2. bf16"));
  terminal.type(std::string(kDown) + kDown + "\n");
  EXPECT_EQ(terminal.exit_code(), 0);
  EXPECT_THAT(terminal.shown(), HasSubstr("configuration saved at"));
  EXPECT_THAT(read_file(path("a.yaml")),
              AllOf(HasSubstr("fsdp_sharding_strategy: HYBRID_SHARD\n"),
                    HasSubstr("fsdp_auto_wrap_policy: NO_WRAP"), HasSubstr("fsdp_version: 1"),
                    HasSubstr("mixed_precision: bf16"), HasSubstr("num_processes: 4")));
  explain("a.yaml");
}

TEST_F(ConfigTerminal, EscGoesBackAndTheLayerClassIsAskedByTheModel) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.shows("Esc goes back to the question before.")) << terminal.shown();
  ASSERT_TRUE(terminal.shows("2. multi-GPU"));
  terminal.type("2\r");
  ASSERT_TRUE(terminal.shows("How many different machines"));
  terminal.type("7\033");  // what is typed is not taken
  ASSERT_TRUE(terminal.shows("Which type of machine are you using?")) << terminal.shown();
  ASSERT_TRUE(terminal.shows("> 2. multi-GPU"));  // the answer that was given
  terminal.type("\r");
  ASSERT_TRUE(takes_defaults(
      terminal, {"How many different machines", "Should distributed operations", "use DeepSpeed?"}))
      << terminal.shown();
  ASSERT_TRUE(terminal.shows("use FullyShardedDataParallel? [yes/NO]: "));
  terminal.type("yes\n");
  ASSERT_TRUE(terminal.shows("1. 2"));
  terminal.type("\033");  // back to a line, whose answer is now the default
  ASSERT_TRUE(terminal.shows("use FullyShardedDataParallel? [YES/no]: ")) << terminal.shown();
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows("1. 2"));
  terminal.type("0\r");
  ASSERT_TRUE(terminal.shows("4. HYBRID_SHARD_ZERO2"));
  terminal.type("\r");
  ASSERT_TRUE(terminal.shows("offload parameters"));
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows("2. NO_WRAP"));
  terminal.type("0\r");
  ASSERT_TRUE(terminal.shows("_no_split_modules"));
  terminal.type("no\n");
  ASSERT_TRUE(terminal.shows("Which model do you train?")) << terminal.shown();
  ASSERT_TRUE(terminal.shows("1. LlamaDecoderLayer (Llama)"));
  ASSERT_TRUE(terminal.shows("9. others"));
  terminal.type("4\r");
  ASSERT_TRUE(takes_defaults(terminal, {"BACKWARD_POST", "LOCAL_STATE_DICT"}, "\r"))
      << terminal.shown();
  ASSERT_TRUE(takes_defaults(
      terminal, {"forward prefetch", "use_orig_params", "CPU RAM", "activation checkpointing"}))
      << terminal.shown();
  ASSERT_TRUE(terminal.shows("How many GPU(s) should be used"));
  terminal.type("4\n");
  ASSERT_TRUE(terminal.shows("2. bf16"));
  terminal.type("\n");
  EXPECT_EQ(terminal.exit_code(), 0);
  EXPECT_THAT(read_file(path("a.yaml")),
              HasSubstr("fsdp_transformer_layer_cls_to_wrap: Qwen3DecoderLayer\n"));
}

TEST_F(ConfigTerminal, LinesAreEditedAndShowNoEscapes) {
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.shows("2. multi-GPU"));
  terminal.type("2\r");
  ASSERT_TRUE(terminal.shows("How many different machines"));
  terminal.type(std::string("7x") + "\x15" + kUp + kDown + "\033[C\033[D\033[H\033[3~" +
                "25\x7f\r");
  ASSERT_TRUE(terminal.shows("What is the rank of this machine?")) << terminal.shown();
  ASSERT_TRUE(terminal.shows("1. 1"));
  terminal.type("\r");
  ASSERT_TRUE(terminal.shows("process?: "));
  terminal.type(std::string(100, 'n') + "\x7f\n");
  ASSERT_TRUE(terminal.shows("What is the port"));
  EXPECT_THAT(terminal.shown(), Not(HasSubstr("^[")));
  EXPECT_THAT(terminal.shown(), Not(HasSubstr(std::string(80, 'n'))));  // its end is shown
}

TEST_F(ConfigTerminal, AsksBeforeItReplacesAFile) {
  for (const char* reply : {"\r", "maybe\rno\r", "\x03"}) {
    const std::string file = write("a.yaml", "precious\n");
    PseudoTerminal terminal = start();
    ASSERT_TRUE(terminal.shows("Replace it? [yes/NO]")) << terminal.shown();
    terminal.type(reply);
    EXPECT_EQ(terminal.exit_code(), reply[0] == '\x03' ? 130 : 0);
    EXPECT_THAT(terminal.shown(), HasSubstr("nothing was written"));
    EXPECT_EQ(read_file(file), "precious\n");
  }
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.shows("Replace it? [yes/NO]"));
  terminal.type("yes\r");
  EXPECT_TRUE(terminal.shows("Which type of machine are you using?"));
}

TEST_F(ConfigTerminal, NoColourIfNotWanted) {
  setenv("NO_COLOR", "1", 1);
  PseudoTerminal terminal = start();
  ASSERT_TRUE(terminal.shows("2. multi-GPU"));
  terminal.type("0\r");
  ASSERT_TRUE(terminal.shows("CPU only"));
  terminal.type("yes\n");
  ASSERT_TRUE(terminal.shows("use DeepSpeed?"));
  terminal.type("\n");
  ASSERT_TRUE(terminal.shows("2. bf16"));
  terminal.type("\r");
  EXPECT_EQ(terminal.exit_code(), 0);
  EXPECT_THAT(terminal.shown(), Not(HasSubstr("\033[32m")));
  EXPECT_THAT(read_file(path("a.yaml")), HasSubstr("distributed_type: 'NO'"));
}

/// Ends the program with a key at a menu or at a line.
class ConfigTerminalEnd : public ConfigTerminal {
 protected:
  void expect_end(bool at_menu, const char* key, int exit_code, const char* message) {
    PseudoTerminal terminal = start();
    ASSERT_TRUE(terminal.shows("2. multi-GPU")) << terminal.shown();
    if (!at_menu) {
      terminal.type("2\r");
      ASSERT_TRUE(terminal.shows("How many different machines"));
    }
    terminal.type(key);
    EXPECT_EQ(terminal.exit_code(), exit_code) << terminal.shown();
    EXPECT_THAT(terminal.shown(), HasSubstr(message));
    EXPECT_TRUE(terminal.is_as_before());
    EXPECT_TRUE(nothing_was_written());
  }
};

TEST_F(ConfigTerminalEnd, SignalsAtAMenuLeaveTheTerminalAsItWas) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    PseudoTerminal terminal = start();
    ASSERT_TRUE(terminal.shows("2. multi-GPU")) << terminal.shown();
    EXPECT_FALSE(terminal.is_as_before());  // keys come one by one
    terminal.send(signal);
    EXPECT_EQ(terminal.exit_code(), 128 + signal);
    EXPECT_TRUE(terminal.is_as_before()) << "after signal " << signal;
    EXPECT_TRUE(nothing_was_written());
  }
}

TEST_F(ConfigTerminalEnd, ControlCAtAMenu) { expect_end(true, "\x03", 130, "nothing was written"); }
TEST_F(ConfigTerminalEnd, ControlCAtALine) {
  expect_end(false, "\x03", 130, "nothing was written");
}
TEST_F(ConfigTerminalEnd, ControlDAtAMenu) { expect_end(true, "\x04", 2, "nothing was written"); }
TEST_F(ConfigTerminalEnd, ControlDAtALine) { expect_end(false, "\x04", 2, "nothing was written"); }

}  // namespace
}  // namespace tessera
