#include <gmock/gmock.h>

#include <cstdlib>
#include <sstream>

#include "cli/launched_program.h"

// `tessera launch --config FILE`: what a file says of machines, and who wins.
namespace tessera {
namespace {

using test::ProgramResult;
using test::read_file;
using test::ScopedVariables;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LaunchConfig : public test::LaunchTest {
 protected:
  /// The numbers of the same run with its ranks as threads.
  std::vector<nlohmann::json> as_threads(std::vector<std::string> more) const {
    more.insert(more.end(), {"--quiet", "--log", path("threads.jsonl")});
    const ProgramResult result = train(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return numbers("threads.jsonl");
  }

  std::string error_with(const std::string& text, std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"--config", write("a.yaml", text)});
    return error_of(launch(flags, {"--data", path("unread.txt")}));
  }
};

// What configs keep on the host is kept there, and the numbers stay the same.
TEST_F(LaunchConfig, OffloadsWhatAFileSays) {
  const std::string data = write_text();
  const std::string fsdp = write("fsdp.yaml",
                                 "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n"
                                 "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                                 "  fsdp_offload_params: true\n");
  const std::string deepspeed =
      write("ds.json", R"({"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 3,
                     "offload_optimizer": {"device": "cpu", "ratio": 0.5}}})");
  const auto run_of = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--data", data, "--steps", "3", "--ranks", "2", "--clip-norm", "1",
                               "--quiet", "--overwrite", "--log", path("log.jsonl")});
    const ProgramResult result = train(flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto log = read_log("log.jsonl");
    return std::pair(log.front(), log.back()["parameters_sha256"]);
  };
  const auto plain = run_of({"--strategy", "full_shard"});
  const auto by_fsdp = run_of({"--config", fsdp});
  const auto by_deepspeed = run_of({"--config", deepspeed});
  EXPECT_EQ(plain.first["offload_optimizer"], "none");
  EXPECT_EQ(by_fsdp.first["offload_optimizer"], "host");
  EXPECT_EQ(by_fsdp.first["offload_parameters"], "host");
  EXPECT_EQ(by_deepspeed.first["offload_optimizer"], "host:0.5");
  EXPECT_EQ(by_fsdp.second, plain.second);
  EXPECT_EQ(by_deepspeed.second, plain.second);
}

TEST_F(LaunchConfig, StartsWhatAnAccelerateFileSays) {
  const std::string file =
      write("a.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n");
  const std::string data = write_text();
  const auto expected =
      as_threads({"--data", data, "--steps", "3", "--ranks", "2", "--strategy", "no_shard"});
  const ProgramResult result =
      launch({"--config", file}, {"--data", data, "--steps", "3", "--log", path("log.jsonl")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 ranks"));  // not 4
  EXPECT_EQ(numbers("log.jsonl"), expected);
  EXPECT_EQ(read_log("log.jsonl").at(0)["ranks"], 2);

  // The same file for the command, and flags that win over it.
  const ProgramResult behind = launch({}, {"--config", file, "--data", data, "--steps", "1"});
  EXPECT_EQ(behind.exit_code, 0) << behind.err;
  EXPECT_THAT(behind.out, HasSubstr("2 ranks"));
  const ProgramResult flags =
      launch({"--config", file, "--processes", "1", "--ranks-per-process", "3"},
             {"--data", data, "--steps", "1"});
  EXPECT_EQ(flags.exit_code, 0) << flags.err;
  EXPECT_THAT(flags.out, HasSubstr("3 ranks"));
  const ProgramResult halves =
      launch({"--config", file, "--ranks-per-process", "2"}, {"--data", data, "--steps", "1"});
  EXPECT_EQ(halves.exit_code, 0) << halves.err;
  EXPECT_THAT(halves.out, AllOf(HasSubstr("[ranks 0-1]"), HasSubstr("2 ranks")));
}

TEST_F(LaunchConfig, AFlagOfTheCommandDecidesWhatTheFileMayNot) {
  const std::string text =
      "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\nmixed_precision: fp8\n"
      "fp8_config:\n  backend: MSAMP\n";
  EXPECT_THAT(error_with(text, {}), HasSubstr("fp8_config.backend"));
  const ProgramResult result = launch(
      {"--config", write("a.yaml", text)},
      {"--data", write_text(), "--steps", "1", "--precision", "bf16", "--log", path("log.jsonl")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_log("log.jsonl").at(0)["precision"], "bf16");
}

TEST_F(LaunchConfig, EveryFlagOfTheCommandReachesTheFile) {
  // Each would end the launch before a process starts, if the file alone decided.
  const std::string data = write_text();
  const std::vector<std::string> shape{"train", "--layers",         "2",  "--heads", "2", "--width",
                                       "16",    "--context-length", "16", "--data",  data};
  const auto with = [&](const std::string& file, const std::vector<std::string>& more) {
    std::vector<std::string> all{"launch", "--processes", "2", "--config", file, "--"};
    all.insert(all.end(), shape.begin(), shape.end());
    all.insert(all.end(), more.begin(), more.end());
    const ProgramResult result = run(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_log("log.jsonl").at(0);
  };
  const std::string warm =
      write("warm.json",
            R"({"train_micro_batch_size_per_gpu": 1, "scheduler": {"type": "WarmupLR",
                "params": {"warmup_num_steps": 150, "warmup_max_lr": 0.001}}})");
  const nlohmann::json steps =
      with(warm, {"--steps", "151", "--log", path("log.jsonl"), "--quiet"});
  EXPECT_EQ(steps["steps"], 151);
  EXPECT_EQ(steps["warmup_steps"], 150);
  const std::string batch =
      write("batch.json", R"({"train_batch_size": 24, "zero_optimization": {"stage": 1}})");
  const nlohmann::json sizes = with(batch, {"--micro-batch", "4", "--accumulate=3", "--steps", "1",
                                            "--log", path("log.jsonl"), "--overwrite"});
  EXPECT_EQ(sizes["micro_batch"], 4);
  EXPECT_EQ(sizes["accumulate"], 3);
}

TEST_F(LaunchConfig, TheCommandsOwnFlagsAreCheckedBeforeAnythingStarts) {
  const std::string unknown = error_of(launch({"--processes", "2"}, {"--stepz", "2"}));
  EXPECT_THAT(unknown, HasSubstr("unknown flag '--stepz'; did you mean '--steps'"));
  EXPECT_THAT(unknown, Not(HasSubstr("rank")));
  EXPECT_THAT(error_of(launch({"--processes", "2"}, {"--ranks", "-2"})), HasSubstr("--ranks"));
  const ProgramResult help = run({"launch", "--", "train", "--help"});
  EXPECT_EQ(help.exit_code, 0) << help.err;
  EXPECT_THAT(help.out, AllOf(HasSubstr("--learning-rate"), Not(HasSubstr("[rank 0]"))));
}

TEST_F(LaunchConfig, TwoNodesMeetAsTheFileSays) {
  // Both are this machine, and exchange messages as if they were not.
  const ScopedVariables apart{{"TESSERA_APART", "1"}};
  const std::string file =
      write("a.yaml",
            "distributed_type: FSDP\nnum_machines: 2\nmachine_rank: 1\nmain_process_ip: 127.0.0.2\n"
            "main_process_port: " +
                port_of_test() +
                "\nnum_processes: 4\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
                "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n");
  const std::string data = write_text();
  const auto expected = as_threads({"--data", data, "--steps", "3", "--ranks", "4", "--strategy",
                                    "hybrid_shard", "--replicas", "2"});
  std::vector<std::string> second{"launch", "--config", file, "--"};
  for (const std::string& word : small_training()) second.push_back(word);
  second.insert(second.end(), {"--data", data, "--steps", "3"});
  int exit_code = -1;
  const ProgramResult first = launch(
      {"--config", file, "--node-rank", "0"},
      {"--data", data, "--steps", "3", "--log", path("log.jsonl")}, [&](pid_t) {
        exit_code = std::system((in_shell(second) + " >" + path("second") + " 2>&1").c_str());
      });
  EXPECT_EQ(exit_code, 0) << read_file(path("second"));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(numbers("log.jsonl").back()["parameters_sha256"], expected.back()["parameters_sha256"]);
  EXPECT_EQ(numbers("log.jsonl").front()["loss"], expected.front()["loss"]);
  EXPECT_EQ(read_log("log.jsonl").at(0)["replicas"], 2);
}

TEST_F(LaunchConfig, ErrorsNameTheFileTheLineAndTheKey) {
  const std::string two = "distributed_type: MULTI_CPU\nnum_processes: 4\nnum_machines: 2\n";
  const std::string file = path("a.yaml");
  EXPECT_THAT(error_with(two, {}),
              AllOf(HasSubstr("--main-address is 127.0.0.1"), HasSubstr("node 0")));
  EXPECT_THAT(error_with(two + "main_process_ip: localhost\n", {}),
              HasSubstr(file + ":4: main_process_ip is localhost"));
  EXPECT_THAT(error_with(two + "main_process_ip: no.such.host.invalid\n", {}),
              HasSubstr(file + ":4: main_process_ip no.such.host.invalid cannot be resolved"));
  EXPECT_THAT(error_with(two + "main_process_ip: 127.0.0.2\nmain_process_port: 0\n", {}),
              HasSubstr(file + ":5: main_process_port 0 takes a free port"));
  EXPECT_THAT(error_with(two + "main_process_port: 70000\n", {}),
              HasSubstr(file + ":4: main_process_port: is 70000; it may be 1 to 65535"));
  EXPECT_THAT(error_with(two + "machine_rank: 2\n", {}),
              HasSubstr(file + ":4: machine_rank: is 2; it must be below num_machines"));
  EXPECT_THAT(error_with(two + "machine_rank: 1\n", {"--nodes", "1"}),
              HasSubstr(file + ":4: machine_rank is 1; with --nodes 1 it may be 0 to 0"));
  EXPECT_THAT(error_with("distributed_type: NO\nnum_machines: 0\n", {}),
              HasSubstr(file + ":2: num_machines: is 0; it must be at least 1"));
  EXPECT_THAT(error_with(two + "main_process_ip: 127.0.0.2\n", {"--nodes", "3"}),
              AllOf(HasSubstr(file + ":2: num_processes: 4 ranks cannot be divided evenly over 3"),
                    HasSubstr("(--nodes)")));
  EXPECT_THAT(error_with(two + "main_process_ip: 127.0.0.2\n", {"--ranks-per-process", "4"}),
              AllOf(HasSubstr(file +
                              ":2: num_processes: 4 ranks cannot be divided evenly over 2 "
                              "machines (" +
                              file + ":3: num_machines)"),
                    HasSubstr("--ranks-per-process")));
  EXPECT_THAT(error_with("distributed_type: MULTI_CPU\nnum_processes: 2\ngpu_ids: '0'\n", {}),
              HasSubstr(file + ":3: gpu_ids names 1 GPU for 2 processes"));
  EXPECT_THAT(error_with("distributed_type: MULTI_CPU\nnum_processes: 4294967296\n", {}),
              HasSubstr(file + ":2: num_processes: is 4294967296; it must be at most 1048576"));
  EXPECT_THAT(error_with("distributed_type: MULTI_CPU\nnum_processes: -1\n", {}),
              HasSubstr("--processes to 'tessera launch'"));
  EXPECT_THAT(error_with("distributed_type: MULTI_CPU\nnum_proceses: 2\n", {}),
              HasSubstr(file + ":2: num_proceses: unknown key"));
  EXPECT_THAT(error_of(launch({"--config", file}, {"--config", file})),
              HasSubstr("--config is there twice"));
}

TEST_F(LaunchConfig, AllThatIsWrongIsToldAtOnce) {
  const std::string text =
      "distributed_type: FSDP\nnum_processes: 4\nnum_machines: 0\nmachine_rank: -1\n"
      "main_process_port: 70000\ngpu_ids: x\nmixed_precision: fp61\nfsdp_config:\n"
      "  fsdp_version: 3\n";
  const std::string file = path("a.yaml");
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--processes", "2"}, {"--nodes", "1", "--node-rank", "0"}}) {
    EXPECT_THAT(error_with(text, flags),
                AllOf(HasSubstr(file + ": 6 keys need a change"),
                      HasSubstr(file + ":3: num_machines: is 0; it must be at least 1"),
                      HasSubstr(file + ":4: machine_rank: is -1; it must be"),
                      HasSubstr(file + ":5: main_process_port: is 70000; it may be 1 to 65535"),
                      HasSubstr(file + ":6: gpu_ids: 'x' is no GPU"),
                      HasSubstr(file + ":7: mixed_precision: unknown value 'fp61'"),
                      HasSubstr(file + ":9: fsdp_config.fsdp_version: unknown value '3'")));
  }
  // What is wrong by itself hides nothing that is wrong with it.
  EXPECT_THAT(error_with("distributed_type: MULTI_CPU\nnum_processes: 2\nmachine_rank: 9999999\n"
                         "num_machines: two\n",
                         {"--nodes", "2"}),
              AllOf(HasSubstr(file + ":3: machine_rank: is 9999999; it must be from 0 to 1048575"),
                    HasSubstr(file + ":4: num_machines: 'two' is not an integer")));
}

TEST_F(LaunchConfig, WhatAFileMeansIsToldOnce) {
  const std::string file = write("a.yaml",
                                 "distributed_type: FSDP\nnum_processes: 2\nuse_cpu: true\n"
                                 "fsdp_config:\n  fsdp_state_dict_type: FULL_STATE_DICT\n");
  const auto notes = [](const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) {
      const std::size_t note = line.find("note: ");
      if (note != std::string::npos) lines.push_back(line.substr(note));
    }
    return lines;
  };
  const std::string data = write_text();
  const ProgramResult alone = train({"--config", file, "--data", data, "--steps", "1"});
  const ProgramResult launched = launch({"--config", file}, {"--data", data, "--steps", "1"});
  ASSERT_EQ(launched.exit_code, 0) << launched.err;
  EXPECT_THAT(alone.err, AllOf(HasSubstr("use_cpu"), HasSubstr("fsdp_auto_wrap_policy (absent)"),
                               HasSubstr("fsdp_state_dict_type")));
  EXPECT_EQ(notes(launched.err), notes(alone.err));
}

TEST_F(LaunchConfig, AloneAFileOfALaterMachineIsRefusedButExplained) {
  const std::string file = write("a.yaml",
                                 "distributed_type: MULTI_CPU\nnum_processes: 4\nnum_machines: 2\n"
                                 "machine_rank: 1\nmain_process_ip: 10.0.0.1\ngpu_ids: 0,1\n");
  EXPECT_THAT(error_of(train({"--config", file, "--data", path("unread.txt")})),
              AllOf(HasSubstr(file + ":4: machine_rank: is 1"),
                    HasSubstr("'tessera launch --config " + file + " -- train'")));
  const ProgramResult explained = run({"explain", file, "--all"});
  EXPECT_EQ(explained.exit_code, 0) << explained.err;
  EXPECT_THAT(explained.out, AllOf(HasSubstr("used by 'tessera launch', as --node-rank"),
                                   HasSubstr("used by 'tessera launch', as --main-address"),
                                   HasSubstr("used by 'tessera launch', as --nodes"),
                                   HasSubstr("used by 'tessera launch', as --gpu-ids")));
}

TEST_F(LaunchConfig, OtherLaunchersMustStartWhatTheFileSays) {
  const std::string file =
      write("a.yaml", "distributed_type: MULTI_CPU\nnum_processes: 3\nmachine_rank: 0\n");
  const ScopedVariables torchrun{{"RANK", "0"},
                                 {"WORLD_SIZE", "2"},
                                 {"LOCAL_WORLD_SIZE", "2"},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", port_of_test()},
                                 {"TORCHELASTIC_RUN_ID", "x"}};
  EXPECT_THAT(error_of(train({"--config", file, "--data", path("unread.txt")})),
              HasSubstr(file + ":2: num_processes: is 3, but torchrun has started 2 processes"));
}

TEST_F(LaunchConfig, ADeepSpeedFileGetsItsRanksFromTheLauncher) {
  const std::string file = write("ds.json",
                                 "{\n\"train_batch_size\": 8,\n"
                                 "\"train_micro_batch_size_per_gpu\": 2,\n"
                                 "\"zero_optimization\": {\"stage\": 2}\n}\n");
  const std::string data = write_text();
  const std::vector<std::string> shape{
      "train", "--layers", "2",  "--heads", "2", "--width", "16", "--context-length",
      "16",    "--data",   data, "--steps", "2"};
  const auto with = [&](std::vector<std::string> front, const std::vector<std::string>& back) {
    front.insert(front.end(), shape.begin(), shape.end());
    front.insert(front.end(), back.begin(), back.end());
    return run(front);
  };
  ASSERT_EQ(with({}, {"--config", file, "--ranks", "2", "--log", path("threads.jsonl")}).exit_code,
            0);
  const ProgramResult result =
      with({"launch", "--processes", "2", "--config", file, "--"}, {"--log", path("log.jsonl")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(numbers("log.jsonl"), numbers("threads.jsonl"));
  const nlohmann::json settings = read_log("log.jsonl").at(0);
  EXPECT_EQ(settings["accumulate"], 2);
  EXPECT_EQ(settings["strategy"], "zero2");

  EXPECT_THAT(error_of(with({"launch", "--processes", "3", "--config", file, "--"}, {})),
              HasSubstr(file + ":2: train_batch_size: 8 samples cannot be divided by"));
}

TEST_F(LaunchConfig, ADefaultFileHoldsForTheLaunchAndIsSaidOnce) {
  std::filesystem::create_directories(path("hf/accelerate"));
  const std::string file =
      write("hf/accelerate/default_config.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\n");
  const std::string data = write_text();
  const ProgramResult result = launch({}, {"--data", data, "--steps", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 ranks"));
  const std::size_t said = result.err.find(file);
  EXPECT_NE(said, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("Accelerate's default file", said + file.size() + 30),
            std::string::npos)
      << result.err;
  const ProgramResult off = launch({}, {"--data", data, "--steps", "1", "--no-default-config"});
  EXPECT_EQ(off.exit_code, 0) << off.err;
  EXPECT_THAT(off.err, Not(HasSubstr(file)));
}

TEST_F(LaunchConfig, SectionsThatAreSwitchedOffDoNotReachTheProcesses) {
  const std::string file = write("a.yaml",
                                 "distributed_type: MULTI_CPU\nnum_processes: 2\nfsdp_config:\n"
                                 "  fsdp_activation_checkpointing: true\n"
                                 "  fsdp_auto_wrap_policy: NO_WRAP\n"
                                 "  fsdp_state_dict_type: LOCAL_STATE_DICT\n");
  const ProgramResult result =
      run({"launch", "--config_file", file, "--", "train", "--layers", "2", "--heads", "2",
           "--width", "16", "--context-length", "16", "--data", write_text(), "--steps", "1",
           "--log", path("log.jsonl")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto run_line = read_log("log.jsonl").at(0);
  EXPECT_EQ(run_line["recompute"], "none");
  EXPECT_EQ(run_line["wrap"], "layer");
  EXPECT_EQ(run_line["ranks"], 2);
}

TEST_F(LaunchConfig, AWorldWithoutARankIsRefused) {
  const ScopedVariables world{{"WORLD_SIZE", "2"}};
  EXPECT_THAT(error_of(train({"--data", path("unread.txt")})),
              HasSubstr("WORLD_SIZE is 2, but there is no RANK"));
}

}  // namespace
}  // namespace tessera
