#include <gmock/gmock.h>

#include <cstdlib>
#include <regex>

#include "cli/launched_program.h"
#include "tessera/trainer/trainer_options.h"

// `tessera test` under a launcher: all work, or the one that differs is named.
namespace tessera {
namespace {

using test::ProgramResult;
using test::read_file;
using test::ScopedVariables;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Preflight : public test::LaunchTest {
 protected:
  /// Runs two processes as torchrun would, the second with `more` flags, of the program `second`.
  ProgramResult run_two(const std::string& second, const std::vector<std::string>& more) {
    ScopedVariables torchrun{{"RANK", "0"},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_WORLD_SIZE", "1"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", port_of_test()}};
    return run({"test"}, [&](pid_t) {
      torchrun.set("RANK", "1");
      std::vector<std::string> arguments{"test"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      second_exit_code_ =
          std::system((in_shell(arguments, second) + " >" + path("second") + " 2>&1").c_str());
    });
  }

  std::string second_output() const { return read_file(path("second")); }

  int second_exit_code_ = -1;
};

TEST_F(Preflight, AllRanksOfOneMachineWork) {
  const ProgramResult result =
      run({"launch", "--processes", "2", "--ranks-per-process", "2", "--", "test"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("processes: all are there: 4 ranks on "),
                                HasSubstr("links: there is one machine"),
                                HasSubstr("full_shard: the same bits, with "),
                                HasSubstr("All 4 ranks on 1 machine work")));
  EXPECT_THAT(result.out, Not(HasSubstr("[ranks 2-3]")));  // rank 0 tells for all
}

TEST_F(Preflight, LinksBetweenMachinesAreMeasured) {
  const ScopedVariables apart{{"TESSERA_APART", "1"}};
  const ProgramResult result = run({"launch", "--processes", "3", "test"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const std::regex link(
      "link between \\S+ \\(rank (\\d)\\) and \\S+ \\(rank (\\d)\\): round trip (\\d+) us, "
      "([0-9.]+) GB/s");
  std::vector<std::string> pairs;
  for (std::sregex_iterator found(result.out.begin(), result.out.end(), link), end; found != end;
       ++found) {
    pairs.push_back((*found)[1].str() + (*found)[2].str());
    EXPECT_GT(std::stoi((*found)[3]), 0);
    EXPECT_GT(std::stod((*found)[4]), 0.0);
  }
  EXPECT_EQ(pairs, (std::vector<std::string>{"01", "02", "12"})) << result.out;
  EXPECT_THAT(result.out, HasSubstr("All 3 ranks on 3 machines work and give the same bits; the "
                                    "slowest link: round trip "));
}

TEST_F(Preflight, OtherSettingsAreNamed) {
  const ProgramResult first = run_two(TESSERA_PROGRAM, {"--seed", "7", "--micro-batch", "3"});
  EXPECT_EQ(first.exit_code, 1) << first.out << first.err;
  EXPECT_NE(second_exit_code_, 0);
  for (const std::string& text : {first.out, second_output()}) {
    EXPECT_THAT(text, HasSubstr("settings: the processes of this run disagree: --micro-batch is 4 "
                                "on rank 0 and 3 on rank 1; --seed is 0 on rank 0 and 7 on rank 1; "
                                "give all of them the same program, settings and data"));
  }
  EXPECT_THAT(first.out, HasSubstr("Do not train with these processes yet: settings: the pro"));
}

TEST_F(Preflight, OtherThreadsAreNamed) {
  const ScopedVariables threads{{"OMP_NUM_THREADS", "2"}};
  const ProgramResult first = run_two(TESSERA_PROGRAM, {"--threads-per-rank", "3"});
  EXPECT_EQ(first.exit_code, 1) << first.out << first.err;
  EXPECT_NE(second_exit_code_, 0);
  for (const std::string& text : {first.out, second_output()}) {
    EXPECT_THAT(text, HasSubstr("disagree: --threads-per-rank is 2 on rank 0 and 3 on rank 1;"));
  }
}

TEST_F(Preflight, ThreadsMayBeSaidInDifferentWays) {
  // The first process is told by its environment, then by nobody: it shares the machine's cores.
  for (const bool told : {true, false}) {
    const int count = told ? 2 : default_threads_per_rank(2);
    const ScopedVariables threads{{"OMP_NUM_THREADS", told ? "2" : ""}};
    const ProgramResult first =
        run_two(TESSERA_PROGRAM, {"--threads-per-rank", std::to_string(count)});
    EXPECT_EQ(first.exit_code, 0) << first.out << first.err << second_output();
  }
}

TEST_F(Preflight, AnotherBuildIsNamed) {
  const std::string other = path("tessera");
  std::filesystem::copy_file(TESSERA_PROGRAM, other);
  std::ofstream(other, std::ios::binary | std::ios::app) << "x";
  const ProgramResult first = run_two(other, {});
  EXPECT_EQ(first.exit_code, 1) << first.out << first.err;
  EXPECT_NE(second_exit_code_, 0);
  EXPECT_THAT(first.out, HasSubstr("program: the processes of this run disagree: the program is "
                                   "build "));
}

TEST_F(Preflight, AProcessThatDoesNotComeIsNamed) {
  const ScopedVariables torchrun{{"RANK", "1"},
                                 {"WORLD_SIZE", "2"},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", port_of_test()}};
  const auto start = std::chrono::steady_clock::now();
  const ProgramResult result = run({"test", "--timeout", "3"});
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("processes: "), HasSubstr("127.0.0.1"), HasSubstr("for 3 s")));
  EXPECT_GE(waited, std::chrono::seconds(3));
  EXPECT_LT(waited, std::chrono::seconds(29));  // not half a minute, whatever --timeout says
}

TEST_F(Preflight, WorksUnderMpirun) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no mpirun";
  const std::string module =
      std::filesystem::path(TESSERA_PROGRAM).parent_path() / "libtessera_mpi.so";
  if (!std::filesystem::exists(module)) GTEST_SKIP() << "built without MPI";
  const std::string command =
      "ASAN_OPTIONS=detect_leaks=0 mpirun -n 2 --oversubscribe --allow-run-as-root --bind-to "
      "none " +
      in_shell({"test"}) + " >" + path("out") + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << read_file(path("out"));
  EXPECT_THAT(read_file(path("out")), HasSubstr("All 2 ranks on 1 machine work"));
}

}  // namespace
}  // namespace tessera
