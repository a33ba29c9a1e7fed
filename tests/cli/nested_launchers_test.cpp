#include <gmock/gmock.h>

#include <algorithm>

#include "cli/launched_program.h"

// Launchers inside of launchers: a process has the variables of all, and the inner one has started
// it.
namespace tessera {
namespace {

using test::ProgramResult;
using test::ScopedVariables;
using ::testing::HasSubstr;

using Variables = std::vector<std::pair<std::string, std::string>>;

// What each launcher sets for process 1 of 2; of the outer ones, for the only process there is.
const Variables kOurs{{"TESSERA_RANKS_PER_PROCESS", "1"},
                      {"RANK", "1"},
                      {"WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", "29500"}};
const Variables kTorchrun{{"TORCHELASTIC_RUN_ID", "none"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", "29500"}};
const Variables kByHand{
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
const Variables kMvapich{{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "1"}};
const Variables kPmi{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}};
const Variables kSlurm{{"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "1"},
                       {"SLURM_NTASKS", "3"},
                       {"SLURM_STEP_NODELIST", "127.0.0.1"}};
const Variables kSlurmPmix{
    {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"PMIX_RANK", "0"}};

struct Nesting {
  const char* name;
  const Variables& outer;
  const Variables& inner;
  nlohmann::json found;  // name, process, processes
};

const Variables kNone;
const Nesting kNestings[] = {
    {"nothing", kNone, kNone, {nullptr, 0, 1}},
    {"torchrun alone", kNone, kTorchrun, {"torchrun", 1, 2}},
    {"srun alone", kNone, kSlurm, {"srun", 1, 3}},
    {"mpirun, tessera launch", kOpenMpi, kOurs, {"tessera launch", 1, 2}},
    {"srun, tessera launch", kSlurm, kOurs, {"tessera launch", 1, 2}},
    {"torchrun, tessera launch", kTorchrun, kOurs, {"tessera launch", 1, 2}},
    {"mpirun, torchrun", kOpenMpi, kTorchrun, {"torchrun", 1, 2}},
    {"mpirun, a script", kOpenMpi, kByHand, {"a launcher", 1, 2}},
    {"srun, mpirun", kSlurm, kOpenMpi, {"mpirun", 0, 1}},
};

/// The environment of the first process that `launcher` starts, once it runs our program.
std::string environment_of_child(pid_t launcher) {
  std::vector<pid_t> children;
  std::string all;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (all.find("TESSERA_RANKS_PER_PROCESS") == std::string::npos) {
    if (std::chrono::steady_clock::now() > deadline) return "no child";
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    children = test::children_of(launcher);
    if (!children.empty()) {
      all = test::read_file("/proc/" + std::to_string(children.front()) + "/environ");
    }
  }
  std::ranges::replace(all, '\0', '\n');  // variables are apart by zeros
  return all;
}

class NestedLaunchers : public test::LaunchTest {
 protected:
  nlohmann::json launcher_found() const {
    const ProgramResult result = run({"env", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out)["launcher"];
  }
};

TEST_F(NestedLaunchers, TheInnerOneCounts) {
  for (const Nesting& nesting : kNestings) {
    SCOPED_TRACE(nesting.name);
    ScopedVariables variables{};
    for (const Variables* all : {&nesting.outer, &nesting.inner}) {
      for (const auto& [name, value] : *all) variables.set(name, value);
    }
    const nlohmann::json launcher = launcher_found();
    EXPECT_EQ(launcher["name"], nesting.found[0]);
    EXPECT_EQ(launcher["process"], nesting.found[1]);
    EXPECT_EQ(launcher["processes"], nesting.found[2]);
  }
}

TEST_F(NestedLaunchers, UnderSrunProcessesMeetOnTheFirstMachineOfTheStep) {
  ScopedVariables slurm{{"SLURM_LAUNCH_NODE_IPADDR", "10.9.9.9"}};  // a login node: nobody listens
  for (const auto& [name, value] : kSlurm) slurm.set(name, value);
  slurm.set("SLURM_JOB_ID", "12");
  for (const auto& [list, host] :
       {std::pair("node7", "node7"), std::pair("node7,node8", "node7"),
        std::pair("node[01-04,7],other", "node01"), std::pair("gpu[3,5]", "gpu3"),
        std::pair("login,node[1-2]", "login"), std::pair("r[1-2]n[05-06]", "r1n05"),
        std::pair("n[1-2].cluster,m1", "n1.cluster")}) {
    slurm.set("SLURM_STEP_NODELIST", list);
    EXPECT_EQ(launcher_found()["address"], host);
    EXPECT_EQ(launcher_found()["port"], 20012);
  }
  slurm.set("MASTER_ADDR", "10.0.0.1");
  EXPECT_EQ(launcher_found()["address"], "10.0.0.1");
  unsetenv("MASTER_ADDR");
  unsetenv("SLURM_STEP_NODELIST");
  EXPECT_THAT(launcher_found()["problem"].get<std::string>(),
              HasSubstr("srun has set no SLURM_STEP_NODELIST"));
}

TEST_F(NestedLaunchers, AProcessDoesNotGetTheVariablesOfOtherLaunchers) {
  ScopedVariables variables{{"TORCHELASTIC_RUN_ID", "none"}};
  for (const Variables* outer : {&kOpenMpi, &kMvapich, &kPmi, &kSlurmPmix}) {
    for (const auto& [name, value] : *outer) variables.set(name, value);
  }
  std::string inherited;
  const ProgramResult result =
      launch({}, {"--data", write_text(), "--steps", "1000000"}, [&](pid_t launcher) {
        inherited = environment_of_child(launcher);
        kill(launcher, SIGTERM);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_THAT(inherited, HasSubstr("TESSERA_RANKS_PER_PROCESS=1"));
  EXPECT_THAT(inherited, HasSubstr("SLURM_NTASKS=1"));  // also says what the job has
  for (const char* name : {"OMPI_", "MV2_", "PMI_", "PMIX_", "SLURM_PROCID", "TORCHELASTIC_"}) {
    EXPECT_THAT(inherited, ::testing::Not(HasSubstr(name)));
  }
}

TEST_F(NestedLaunchers, AnMpiThatDoesNotKnowItsLauncherEndsTheRun) {
  const auto module = std::filesystem::path(TESSERA_PROGRAM).parent_path() / "libtessera_mpi.so";
  if (!std::filesystem::exists(module)) GTEST_SKIP() << "built without MPI";
  const ScopedVariables mvapich{{"MV2_COMM_WORLD_RANK", "0"},
                                {"MV2_COMM_WORLD_SIZE", "2"},
                                {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  EXPECT_THAT(error_of(train({"--data", write_text(), "--steps", "1"})),
              HasSubstr("mpirun has started 2 processes, but the MPI of this build knows of 1"));
}

}  // namespace
}  // namespace tessera
