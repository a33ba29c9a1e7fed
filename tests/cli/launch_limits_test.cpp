#include <gmock/gmock.h>

#include "cli/launched_program.h"
#include "tessera/core/error.h"

// `tessera launch` where something that it needs is closed, full or short.
namespace tessera {
namespace {

using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LaunchLimits : public test::LaunchTest {
 protected:
  /// The exit code of a launch that `wrap` surrounds in a shell, "%" being the launch.
  int launch_in_shell(std::string wrap, const std::string& processes = "2") const {
    std::vector<std::string> arguments{"launch", "--processes", processes, "--"};
    for (const std::string& word : small_training()) arguments.push_back(word);
    arguments.insert(arguments.end(), {"--data", write_text(), "--steps", "2"});
    wrap.replace(wrap.find('%'), 1, "timeout 60 " + in_shell(arguments));
    const int status =
        std::system(("exec >" + path("out") + " 2>" + path("err") + "; " + wrap).c_str());
    return WEXITSTATUS(status);
  }
};

TEST_F(LaunchLimits, ClosedStandardStreamsDoNotStopIt) {
  EXPECT_EQ(launch_in_shell("% <&-"), 0) << read_file(path("err"));
  EXPECT_THAT(read_file(path("out")), HasSubstr("[rank 0] sha256"));
  EXPECT_EQ(launch_in_shell("% 2>&-"), 0);
  EXPECT_EQ(launch_in_shell("% <&- 2>&-"), 0);
  EXPECT_THAT(read_file(path("out")), HasSubstr("[rank 0] sha256"));
  EXPECT_EQ(launch_in_shell("% <&- >&-"), 1);
  EXPECT_THAT(read_file(path("err")), HasSubstr("error: standard output cannot be written\n"));
}

TEST_F(LaunchLimits, LostOutputIsAFailure) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_EQ(launch_in_shell("% >/dev/full"), 1);
  EXPECT_THAT(read_file(path("err")), HasSubstr("error: standard output cannot be written\n"));
}

TEST_F(LaunchLimits, TooFewOpenFilesAreSaidBeforeAnythingStarts) {
  EXPECT_EQ(launch_in_shell("ulimit -n 32; %", "100000"), 2);
  EXPECT_THAT(read_file(path("err")),
              AllOf(HasSubstr("error: --processes 100000 needs at least 300008 open files"),
                    HasSubstr("start at most 8 --processes, or raise 'ulimit -n'")));
}

TEST_F(LaunchLimits, APipeThatCannotBeMadeTellsWhatHelps) {
  // Not those that the test has.
  EXPECT_EQ(launch_in_shell("exec 3>&- 4>&- 5>&- 6>&-; ulimit -n 7; %", "1"), 1);
  EXPECT_THAT(
      read_file(path("err")),
      HasSubstr("cannot make a pipe: Too many open files; start fewer --processes, or raise "
                "'ulimit -n'"));
}

TEST_F(LaunchLimits, AFileLimitTellsWhatHelps) {
  EXPECT_EQ(launch_in_shell("ulimit -f 1000; %"), 1);
  EXPECT_THAT(read_file(path("err")), HasSubstr("File too large; lift 'ulimit -f', or train in"));
}

TEST_F(LaunchLimits, NumbersOfTheEnvironmentThatMakeNoSenseAreRefused) {
  test::ScopedVariables variables{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "99999"}};
  const std::vector<std::string> arguments{"--data", write_text(), "--timeout", "3"};
  EXPECT_THAT(error_of(train(arguments)), HasSubstr("MASTER_PORT is 99999; it must be 1 to 65535"));
  variables.set("MASTER_PORT", "65535");
  variables.set("TORCHELASTIC_RUN_ID", "none");
  variables.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_THAT(error_of(train(arguments)), HasSubstr("MASTER_PORT is 65535; it must be 1 to 65534"));
  variables.set("MASTER_PORT", "29500");
  variables.set("RANK", "5");
  EXPECT_THAT(error_of(train(arguments)),
              HasSubstr("this is process 5 of 2; with WORLD_SIZE 2, RANK must be 0 to 1"));
  variables.set("WORLD_SIZE", "0");
  EXPECT_THAT(error_of(train(arguments)), HasSubstr("WORLD_SIZE is 0; it must be at least 1"));
}

}  // namespace
}  // namespace tessera
