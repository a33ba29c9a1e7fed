#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

// A rank that aborts, stalls, is killed or just leaves: every rank of every process is told in
// time.
namespace tessera::world_failure_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Ending {
  long long milliseconds = -1;
  std::string code;
  std::string what;
};

class WorldFailure : public ::testing::TestWithParam<std::string> {
 protected:
  /// How the first `ranks` of 3 processes with 2 ranks ended; the last rank of the last process is
  /// the one that fails. `more` are arguments of the program.
  std::vector<Ending> run(const std::string& mode, int ranks, const std::string& more = "") {
    const auto folder = std::filesystem::path(::testing::TempDir()) /
                        ("tessera_world_" + mode + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    const std::string command = std::string(TESSERA_WORLD_FAILURE) + " --processes 3 --ranks 2 " +
                                GetParam() + " " + more + " --mode " + mode + " --path " +
                                folder.string();
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) || WIFSIGNALED(status)) << command;
    std::vector<Ending> endings;
    for (int rank = 0; rank < ranks; ++rank) {
      std::ifstream file(folder / std::to_string(rank));
      Ending ending;
      file >> ending.milliseconds;
      file.ignore();
      std::getline(file, ending.code);
      std::getline(file, ending.what);
      endings.push_back(ending);
    }
    std::filesystem::remove_all(folder);
    return endings;
  }
};

constexpr long long kPatience = 60000;

TEST_P(WorldFailure, AnAbortingRankIsHeardEverywhere) {
  for (const Ending& ending : run("abort", 5)) {
    EXPECT_EQ(ending.code, "aborted");
    EXPECT_THAT(ending.what, HasSubstr("rank 5 failed: the disk is full"));
    EXPECT_LT(ending.milliseconds, kPatience);
  }
}

TEST_P(WorldFailure, AStalledRankIsNamed) {
  for (const Ending& ending : run("stall", 5, "--timeout 4000")) {
    EXPECT_THAT(ending.code, AnyOf("timeout", "aborted"));
    EXPECT_THAT(ending.what, HasSubstr("rank 5"));
    EXPECT_THAT(ending.what, HasSubstr("did not arrive within 4000 ms"));
    EXPECT_LT(ending.milliseconds, kPatience);
  }
}

TEST_P(WorldFailure, AKilledProcessIsNamed) {
  for (const Ending& ending : run("kill", 4)) {
    EXPECT_EQ(ending.code, "aborted") << ending.what;
    EXPECT_THAT(ending.what, HasSubstr("process 2"));
    EXPECT_LT(ending.milliseconds, kPatience);
  }
}

TEST_P(WorldFailure, AProcessThatLeavesEarlyIsNamed) {
  for (const Ending& ending : run("exit", 4)) {
    EXPECT_EQ(ending.code, "aborted") << ending.what;
    EXPECT_THAT(ending.what, HasSubstr("process 2"));
    EXPECT_LT(ending.milliseconds, kPatience);
  }
}

TEST_P(WorldFailure, AMessageThatItsReceiverDoesNotExpectIsNamed) {
  for (const Ending& ending : run("size", 5)) {
    EXPECT_THAT(ending.code, AnyOf("invalid_argument", "aborted"));
    EXPECT_THAT(ending.what, HasSubstr("rank 5 issued send of 5 fp32"));
    EXPECT_THAT(ending.what, HasSubstr("rank 0 issued recv of 4 fp32"));
  }
  for (const Ending& ending : run("dtype", 5)) {
    EXPECT_THAT(ending.what, HasSubstr("rank 5 issued send of 4 int32"));
    EXPECT_THAT(ending.what, HasSubstr("rank 0 issued recv of 4 fp32"));
  }
  for (const Ending& ending : run("size", 5, "--check")) {
    EXPECT_THAT(ending.what, HasSubstr("rank 5 issued send(5 fp32)"));
    EXPECT_THAT(ending.what, HasSubstr("rank 0 issued recv(4 fp32)"));
  }
}

INSTANTIATE_TEST_SUITE_P(OneMachine, WorldFailure, ::testing::Values(""));
INSTANTIATE_TEST_SUITE_P(ThreeMachines, WorldFailure, ::testing::Values("--apart"));

}  // namespace
}  // namespace tessera::world_failure_test
