#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "cli/launched_program.h"
#include "tessera/core/core_binding.h"

// --bind of `tessera train`, under launchers and masks, and the map that `tessera env` shows.
namespace tessera {
namespace {

using nlohmann::json;
using test::children_of;
using test::ProgramResult;
using test::ScopedVariables;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Binding : public test::LaunchTest {
 protected:
  json binding(const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"env", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out)["binding"];
  }
};

/// What is started in the scope may only run on those CPUs, as under taskset.
class ScopedMask {
 public:
  explicit ScopedMask(const CpuList& cpus) { bind_thread(cpus); }
  ~ScopedMask() { bind_thread(before_); }
  ScopedMask(const ScopedMask&) = delete;
  ScopedMask& operator=(const ScopedMask&) = delete;

 private:
  const CpuList before_ = cpus_of_thread();
};

TEST_F(Binding, EnvShowsWhichCoresRanksWouldGet) {
  const ScopedVariables machine{{"HWLOC_SYNTHETIC", "pack:2 [numa] core:8 pu:2"}};
  const ProgramResult result = run({"env", "--ranks", "4", "--bind", "cores"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("- binding: --bind cores for 4 ranks: cores, 4 per rank\n"));
  EXPECT_THAT(result.out, HasSubstr("\n"
                                    "rank  cores  node   CPUs\n"
                                    "0         4     0    0-7\n"
                                    "1         4     0   8-15\n"
                                    "2         4     1  16-23\n"
                                    "3         4     1  24-31\n"));
  const json fields = binding({"--ranks", "3", "--bind-core-list", "0-3,16-19"});
  EXPECT_EQ(fields["asked"], "auto");
  EXPECT_EQ(fields["policy"], "cores");
  EXPECT_EQ(fields["of_this_machine"], false);
  EXPECT_EQ(fields["ranks"][2], (json{{"rank", 2},
                                      {"cores", 2},
                                      {"cpus", {16, 17, 18, 19}},
                                      {"nodes", {1}},
                                      {"gpu", nullptr}}));
  EXPECT_EQ(binding({"--ranks", "2"})["policy"], "numa");
  EXPECT_TRUE(binding({}).is_null());
}

/// As Linux numbers the CPUs of many machines with two sockets: in turns.
TEST_F(Binding, LongMapsFitATerminal) {
  const ScopedVariables machine{
      {"HWLOC_SYNTHETIC",
       "pack:2 [numa] core:64(indexes=0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,"
       "44,46,48,50,52,54,56,58,60,62,64,66,68,70,72,74,76,78,80,82,84,86,88,90,92,94,96,98,100,"
       "102,104,106,108,110,112,114,116,118,120,122,124,126,1,3,5,7,9,11,13,15,17,19,21,23,25,27,"
       "29,31,33,35,37,39,41,43,45,47,49,51,53,55,57,59,61,63,65,67,69,71,73,75,77,79,81,83,85,87,"
       "89,91,93,95,97,99,101,103,105,107,109,111,113,115,117,119,121,123,125,127) pu:2"}};
  const ProgramResult result = run({"env", "--ranks", "8", "--bind", "cores"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out.substr(result.out.find("\nrank")));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

TEST_F(Binding, EnvRefusesWhatARunWould) {
  EXPECT_THAT(error_of(run({"env", "--ranks", "2", "--bind", "sockets"})), HasSubstr("'sockets'"));
  EXPECT_THAT(error_of(run({"env", "--ranks", "2", "--bind-core-list", "x"})),
              HasSubstr("'x' names no CPUs"));
  EXPECT_THAT(error_of(run({"env", "--bind", "cores"})), HasSubstr("--ranks"));
}

/// A run says how it is bound; a process that got a part of the machine stays there.
TEST_F(Binding, ARunRespectsTheMaskThatItWasStartedWith) {
  const CpuList all = cpus_of_thread();
  if (all.size() < 2) GTEST_SKIP() << "one CPU";
  const std::string data = write_text();
  const ScopedMask mask(CpuList{all.back()});
  const auto said = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = small_training();
    arguments.insert(arguments.end(), {"--data", data, "--steps", "1", "--sample-tokens", "0"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::size_t begin = result.out.find("binding: ");
    return result.out.substr(begin, result.out.find('\n', begin) - begin);
  };
  const std::string own = to_string(CpuList{all.back()});
  EXPECT_EQ(said({}), "binding: none (this process was started on CPUs " + own + " only)");
  EXPECT_EQ(said({"--bind", "cores"}), "binding: cores, 1 per rank");
  EXPECT_EQ(said({"--bind", "cores", "--ranks", "2"}),
            "binding: none (2 ranks share 1 core, and one NUMA node)");
  for (const json& rank : binding({"--ranks", "2", "--bind", "cores"})["ranks"]) {
    EXPECT_EQ(rank["cpus"], json(CpuList{all.back()}));
  }
}

TEST_F(Binding, FlagsOfOthersTakeEffect) {
  const std::string data = write_text();
  const auto logged = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = small_training();
    arguments.insert(arguments.end(), {"--data", data, "--steps", "1", "--sample-tokens", "0",
                                       "--log", path("log"), "--overwrite"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out.substr(result.out.find("binding: "), 14);
  };
  EXPECT_EQ(logged({"--bind_cores_to_rank"}), "binding: cores");
  const std::string cpu = std::to_string(cpus_of_thread().front());
  EXPECT_EQ(logged({"--bind_cores_to_rank", "--bind_core_list", cpu}), "binding: cores");
  EXPECT_EQ(read_log("log").at(0)["bind_core_list"], cpu);
  const ScopedVariables variable{{"ACCELERATE_CPU_AFFINITY", "1"}};
  EXPECT_THAT(run({"train", "--data", data, "--steps", "1", "--bind", "cores", "--verbose"}).out,
              HasSubstr("binding: cores"))
      << "a flag comes before a variable";
}

/// The CPUs of a process's threads whose names begin so.
std::set<std::string> cpus_of_threads(pid_t process, const std::string& name) {
  std::set<std::string> found;
  std::error_code gone;
  const std::string tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    if (!test::read_file(task.path() / "comm").starts_with(name)) continue;
    std::ifstream status(task.path() / "status");
    const std::string key = "Cpus_allowed_list:\t";
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(key)) found.insert(line.substr(key.size()));
    }
  }
  return found;
}

/// Rank 0 is a process of its own, and so is rank 1.
TEST_F(Binding, ProcessesOfAMachineDivideItsCores) {
  const CpuTopology machine = within(read_topology(), cpus_of_thread());
  if (machine.cores.size() < 2) GTEST_SKIP() << "one core";
  const CoreBinding expected = divide_cores(machine, {.policy = BindPolicy::kCores, .ranks = 2});
  std::map<std::string, std::set<std::string>> seen;
  const ProgramResult result =
      launch({"--processes", "2"}, {"--data", write_text(), "--steps", "100000", "--bind", "cores"},
             [&](pid_t launcher) {
               const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
               while (seen.size() < 2 && std::chrono::steady_clock::now() < deadline) {
                 for (const pid_t child : children_of(launcher)) {
                   for (const char* stream : {"compute0", "compute1"}) {
                     for (const std::string& cpus : cpus_of_threads(child, stream)) {
                       seen[stream].insert(cpus);
                     }
                   }
                 }
                 std::this_thread::sleep_for(std::chrono::milliseconds(20));
               }
               kill(launcher, SIGINT);
             });
  EXPECT_THAT(seen["compute0"], ElementsAre(to_string(expected.ranks[0].cpus))) << result.err;
  EXPECT_THAT(seen["compute1"], ElementsAre(to_string(expected.ranks[1].cpus)));
  EXPECT_THAT(result.out, HasSubstr("binding: cores, "));
}

}  // namespace
}  // namespace tessera
