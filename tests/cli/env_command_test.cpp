#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "cli/launched_program.h"

// `tessera env` and `gpu-info`, which are for reports, and what every command does at once.
namespace tessera {
namespace {

using nlohmann::json;
using test::ProgramResult;
using test::ScopedVariables;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kFile = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\n";

/// Without the default file of the person who runs the test.
class EnvCommand : public test::LaunchTest {
 protected:
  json report(const std::vector<std::string>& more, int exit_code = 0) {
    std::vector<std::string> arguments{"env", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(result.err, "");
    return json::parse(result.out);
  }
};

TEST_F(EnvCommand, TellsTheMachineTheLibrariesAndWhatALauncherHasSet) {
  const ScopedVariables variables{{"FSDP_VERSION", "2"},
                                  {"OMP_NUM_THREADS", "3"},
                                  {"SLURM_JOB_NODELIST", "n[1-2]"},
                                  {"PMI_SHARED_SECRET", "42"}};
  const json said = report({});
  EXPECT_EQ(said["kind"], "env");
  for (const char* key :
       {"tessera", "built_by", "system", "kernel", "host", "processor", "onednn", "kernels_use"}) {
    ASSERT_TRUE(said[key].is_string()) << key;
    EXPECT_NE(said[key], "") << key;
  }
  EXPECT_GT(said["usable_cores"].get<int>(), 0);
  EXPECT_TRUE(said["physical_cores"].is_null() || said["physical_cores"].get<int>() > 0);
  EXPECT_GT(said["available_bytes"].get<std::int64_t>(), 0);
  EXPECT_GE(said["memory_bytes"].get<std::int64_t>(), std::int64_t{1} << 20);
  EXPECT_TRUE(said["numa_nodes"].is_array() && said["vector_units"].is_array());
  EXPECT_TRUE(said["mpi"].is_null() || said["mpi"].is_string());
  const json variables_said = said["environment"];
  EXPECT_EQ(variables_said["FSDP_VERSION"], "2");
  EXPECT_EQ(variables_said["OMP_NUM_THREADS"], "3");
  EXPECT_EQ(variables_said["SLURM_JOB_NODELIST"], "n[1-2]");
  EXPECT_FALSE(variables_said.contains("PMI_SHARED_SECRET"));
  EXPECT_EQ(said["launcher"]["threads_per_rank"], 3);
  const json nothing{{"file", nullptr},     {"default", false}, {"dialect", nullptr},
                     {"strategy", nullptr}, {"ranks", nullptr}, {"precision", nullptr},
                     {"problem", nullptr}};
  EXPECT_EQ(said["config"], nothing);
  const ProgramResult text = run({"env"});
  EXPECT_THAT(text.out, HasSubstr(" SLURM_JOB_NODELIST=n[1-2]"));
  EXPECT_THAT(text.out, AllOf(HasSubstr("- processor: " + said["processor"].get<std::string>()),
                              HasSubstr("- config: none in force")));
}

/// What a report says must not depend on what a variable holds.
TEST_F(EnvCommand, KeepsOddValuesOfVariablesInTheirPlace) {
  const ScopedVariables variables{{"NCCL_ODD_A", "a\n- tessera: 9 \x1b[31m"},
                                  {"NCCL_ODD_B", "\xff"}};
  const json environment = report({})["environment"];
  EXPECT_EQ(environment["NCCL_ODD_A"], "a\n- tessera: 9 \x1b[31m");
  EXPECT_EQ(environment["NCCL_ODD_B"], "\uFFFD");
  EXPECT_THAT(run({"env"}).out,
              HasSubstr(R"(NCCL_ODD_A="a\n- tessera: 9 \u001b[31m" NCCL_ODD_B="\ufffd")"));
}

TEST_F(EnvCommand, OutputThatIsLostIsAFailure) {
  for (const std::string command : {"env", "gpu-info --json", "--help"}) {
    const std::string line = "'" TESSERA_PROGRAM "' " + command + " > /dev/full 2> " + path("said");
    const int status = std::system(line.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << command;
    EXPECT_THAT(test::read_file(path("said")),
                HasSubstr("standard output cannot be written; is the disk full?"));
  }
}

TEST_F(EnvCommand, GivesProgramsTheGpusAsGpuInfoDoes) {
  const json cuda = report({})["cuda"];
  const json listed = json::parse(run({"gpu-info", "--json"}).out);
  EXPECT_EQ(cuda["usable"], cuda["problem"].is_null());
  EXPECT_EQ(cuda["gpus"].size(), listed["gpus"].size());
  EXPECT_EQ(cuda["problem"], listed["problem"]);
  for (const char* key :
       {"backend", "built_with", "kernel_module", "driver_up_to", "cublaslt", "cudnn", "nccl"}) {
    ASSERT_TRUE(cuda.contains(key)) << key;
    EXPECT_TRUE(cuda[key].is_null() || (cuda[key].is_string() && cuda[key] != "")) << key;
  }
}

TEST_F(EnvCommand, GivesProgramsTheLauncher) {
  const json alone = report({})["launcher"];
  EXPECT_EQ(alone, (json{{"name", nullptr},
                         {"process", 0},
                         {"processes", 1},
                         {"machines", nullptr},
                         {"ranks_per_process", nullptr},
                         {"threads_per_rank", nullptr},
                         {"address", nullptr},
                         {"port", nullptr},
                         {"problem", nullptr}}));
  ScopedVariables started{{"RANK", "1"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "29500"}};
  const json second = report({})["launcher"];
  EXPECT_EQ(second["process"], 1);
  EXPECT_EQ(second["processes"], 4);
  EXPECT_EQ(second["machines"], 2);
  EXPECT_EQ(second["address"], "node0");
  EXPECT_EQ(second["port"], 29500);
  started.set("RANK", "one");
  const json broken = report({})["launcher"];
  EXPECT_TRUE(broken["process"].is_null());
  EXPECT_THAT(broken["problem"].get<std::string>(), HasSubstr("RANK is 'one'"));
}

TEST_F(EnvCommand, TellsWhatTheConfigInForceMeans) {
  const std::string file = write("a.yaml", kFile);
  const json config = report({"--config", file})["config"];
  EXPECT_EQ(config, (json{{"file", file},
                          {"default", false},
                          {"dialect", "Accelerate"},
                          {"strategy", "full_shard"},
                          {"ranks", 4},
                          {"precision", "bf16"},
                          {"problem", nullptr}}));
  EXPECT_THAT(run({"env", "--config", file}).out,
              HasSubstr("- config: " + file +
                        ", settings of Accelerate: strategy full_shard on 4 ranks, bf16"));
  std::filesystem::create_directories(path("hf/accelerate"));
  const std::string default_file = write("hf/accelerate/default_config.yaml", kFile);
  const json standard = report({})["config"];
  EXPECT_EQ(standard["file"], default_file);
  EXPECT_EQ(standard["default"], true);
  EXPECT_THAT(run({"env"}).out,
              HasSubstr(default_file + " (Accelerate's default), settings of Accelerate"));
}

TEST_F(EnvCommand, TellsOfAFileThatIsMissingOrWrong) {
  const json missing = report({"--config", path("none.yaml")}, 2)["config"];
  EXPECT_THAT(missing["problem"].get<std::string>(),
              AllOf(HasSubstr("none.yaml"), HasSubstr("cannot be opened")));
  EXPECT_TRUE(missing["ranks"].is_null());
  std::filesystem::create_directories(path("hf/accelerate"));
  const std::string broken =
      write("hf/accelerate/default_config.yaml", "distributed_type: FSDP\nnum_proceses: 2\n");
  EXPECT_THAT(report({})["config"]["problem"].get<std::string>(),
              HasSubstr(broken + ":2: num_proceses"));
  EXPECT_THAT(run({"env"}).out, HasSubstr("which no run can use: " + broken + ":2"));
}

TEST_F(EnvCommand, GpuInfoListsGpusOrSaysWhyThereAreNone) {
  const ProgramResult listed = run({"gpu-info", "--json"});
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  const json status = json::parse(listed.out);
  EXPECT_TRUE(!status["gpus"].empty() || status["problem"].is_string()) << listed.out;
  const ProgramResult text = run({"gpu-info"});
  if (status["problem"].is_string()) {
    EXPECT_THAT(text.out, AllOf(HasSubstr("No GPU can be used"),
                                HasSubstr(status["problem"].get<std::string>())));
  } else {
    EXPECT_THAT(text.out, HasSubstr(status["gpus"][0]["uuid"].get<std::string>()));
  }
}

TEST_F(EnvCommand, CommandsOfAccelerateAreAnsweredInASentence) {
  EXPECT_THAT(error_of(run({"merge-weights", "a", "b"})), HasSubstr("tessera checkpoint convert"));
  EXPECT_THAT(error_of(run({"merge_weights"})), HasSubstr("tessera checkpoint convert"));
  EXPECT_THAT(error_of(run({"to-fsdp2", "--config_file", "a"})), HasSubstr("tessera explain"));
  EXPECT_THAT(error_of(run({"tpu-config"})), HasSubstr("TPUs are not supported"));
  EXPECT_THAT(error_of(run({"trian"})), HasSubstr("did you mean 'train'?"));
}

TEST_F(EnvCommand, StartsInAMoment) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers start slowly";
#endif
  // Processor time, and the least of several runs: a machine with other work does not count.
  const auto used = [] {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_CHILDREN, &usage), 0);
    const auto ms = [](const timeval& t) {
      return 1e3 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_usec);
    };
    return ms(usage.ru_utime) + ms(usage.ru_stime);
  };
  const std::string file = write("a.yaml", kFile);
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"--version"}, {"--help"}, {"train", "--help"}, {"env"}, {"explain", file}}) {
    SCOPED_TRACE(command.front());
    double least = std::numeric_limits<double>::max();
    constexpr int kRuns = 9;
    for (int i = 0; i < kRuns; ++i) {
      const double before = used();
      ASSERT_EQ(run(command).exit_code, 0);
      least = std::min(least, used() - before);
    }
    EXPECT_LT(least, 50.0);
    EXPECT_GT(least, 0.0);
  }
}

}  // namespace
}  // namespace tessera
