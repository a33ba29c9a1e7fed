#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "cli/launched_program.h"
#include "tessera/core/error.h"

// How the processes of a run find each other, who else may come, and what ends them meanwhile.
namespace tessera::launch_meeting_test {
namespace {

using test::ProgramResult;
using test::read_file;
using test::ScopedVariables;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kSoon{60};

void sleep_a_little() { std::this_thread::sleep_for(milliseconds(5)); }

class LaunchMeeting : public test::LaunchTest {
 protected:
  /// Two nodes that are both this machine, the second with `token` in its environment.
  ProgramResult run_two_nodes(const std::string& token, const std::vector<std::string>& more) {
    const ScopedVariables apart{{"TESSERA_APART", "1"}};
    const std::string data = write_text();
    const auto flags = [&](const char* node) {
      return std::vector<std::string>{"--nodes",        "2",         "--node-rank", node,
                                      "--main-address", "127.0.0.2", "--main-port", port_of_test()};
    };
    std::vector<std::string> training{"--data", data, "--steps", "1"};
    training.insert(training.end(), more.begin(), more.end());
    std::vector<std::string> second = flags("1");
    second.insert(second.begin(), "launch");
    second.emplace_back("--");
    for (const std::string& word : small_training()) second.push_back(word);
    second.insert(second.end(), training.begin(), training.end());
    return launch(flags("0"), training, [&](pid_t) {
      const std::string variable = token.empty() ? "" : "TESSERA_JOB_TOKEN=" + token + " ";
      const auto begin = Clock::now();
      second_exit_code_ =
          std::system((variable + in_shell(second) + " >" + path("second") + " 2>&1").c_str());
      second_took_ = Clock::now() - begin;
    });
  }

  /// Waits until the launcher has started as many processes.
  static std::vector<pid_t> children(pid_t launcher, std::size_t number) {
    while (test::children_of(launcher).size() < number) sleep_a_little();
    return test::children_of(launcher);
  }

  void await_step(const std::string& log) const {
    while (read_file(path(log)).find("\"step\":3,") == std::string::npos) sleep_a_little();
  }

  int second_exit_code_ = -1;
  Clock::duration second_took_{};
};

TEST_F(LaunchMeeting, NodesWithoutASecretMeetAndProcess0SaysSo) {
  const ProgramResult first = run_two_nodes("", {});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second_exit_code_, 0) << read_file(path("second"));
  EXPECT_THAT(first.err, HasSubstr("note: the processes have no secret of their own, so whoever "
                                   "reaches port " +
                                   port_of_test()));
  EXPECT_THAT(read_file(path("second")), Not(HasSubstr("secret")));
}

TEST_F(LaunchMeeting, NodesWithOneSecretMeet) {
  const ScopedVariables token{{"TESSERA_JOB_TOKEN", "a b"}};
  const ProgramResult first = run_two_nodes("", {});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second_exit_code_, 0) << read_file(path("second"));
  EXPECT_THAT(first.err, Not(HasSubstr("secret")));
}

TEST_F(LaunchMeeting, TwoJobsAtOnePortAreToldApart) {
  const ProgramResult first = run_two_nodes("another", {"--timeout", "15"});
  EXPECT_EQ(first.exit_code, 1) << first.err;
  EXPECT_THAT(first.err,
              AllOf(HasSubstr("these processes did not come: 1"),
                    HasSubstr("1 connection from 127.0.0."), HasSubstr("had another job's token")));
  EXPECT_NE(second_exit_code_, 0);
  EXPECT_THAT(read_file(path("second")),
              AllOf(HasSubstr("process 1"), HasSubstr("found another job at 127.0.0.2:")));
  EXPECT_LT(second_took_, std::chrono::seconds(15));  // it does not wait for the time-out
}

TEST_F(LaunchMeeting, OneMachineHasARandomSecretThatNobodyIsShown) {
  std::string shown;
  std::string token;
  const ProgramResult result = launch(
      {"--processes", "2"}, {"--data", write_text(), "--steps", "1000000", "--log", path("log")},
      [&](pid_t launcher) {
        await_step("log");
        const std::string environment =
            read_file("/proc/" + std::to_string(test::children_of(launcher).at(1)) + "/environ");
        const std::string name = "TESSERA_JOB_TOKEN=";
        const std::size_t begin = environment.find(name);
        if (begin != std::string::npos) token = environment.c_str() + begin + name.size();
        kill(launcher, SIGTERM);
      });
  EXPECT_GT(token.size(), 16U);
  EXPECT_THAT(result.err, Not(HasSubstr("secret")));
  const ScopedVariables set{{"TESSERA_JOB_TOKEN", token}};
  const ProgramResult env = run({"env"});
  EXPECT_THAT(env.out, AllOf(HasSubstr("TESSERA_JOB_TOKEN="), Not(HasSubstr(token))));
  EXPECT_THAT(error_of(launch({"--job-token", ""}, {})), HasSubstr("--job-token is empty"));
}

TEST_F(LaunchMeeting, ADeathBeforeProcessesHaveMetEndsTheOthersAtOnce) {
  Clock::time_point killed;
  const ProgramResult result =
      launch({"--processes", "3", "--grace", "60"},
             {"--data", write_text(), "--steps", "1", "--timeout", "60"}, [&](pid_t launcher) {
               kill(children(launcher, 2).at(1), SIGKILL);
               killed = Clock::now();
             });
  EXPECT_LT(Clock::now() - killed, kSoon);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("rank 1 (process 1, "),
                    HasSubstr("was killed by signal 9 (Killed) before the processes had met")));
}

TEST_F(LaunchMeeting, OneMachineListensAtTheLoopbackInterfaceAlone) {
  const int port = std::stoi(port_of_test());
  std::string sockets;
  std::string sockets_of_six;
  const ProgramResult result =
      launch({"--processes", "2", "--main-port", port_of_test()},
             {"--data", write_text(), "--steps", "1"}, [&](pid_t launcher) {
               const pid_t first = children(launcher, 1).at(0);
               kill(first, SIGSTOP);  // it listens as long as it has not met
               sockets = read_file("/proc/net/tcp");
               sockets_of_six = read_file("/proc/net/tcp6");
               kill(first, SIGCONT);
             });
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::ostringstream hexadecimal;
  hexadecimal << ":" << std::hex << std::uppercase << port << " ";
  EXPECT_THAT(sockets, HasSubstr("0100007F" + hexadecimal.str() + "00000000:0000 0A"));
  EXPECT_THAT(sockets_of_six, Not(HasSubstr(hexadecimal.str() + "0000000000000")));
}

TEST_F(LaunchMeeting, TheProcessThatWasKilledIsBlamedAlthoughOthersAreSeenFirst) {
  pid_t killed = 0;
  const ProgramResult result = launch(
      {"--processes", "3"}, {"--data", write_text(), "--steps", "1000000", "--log", path("log")},
      [&](pid_t launcher) {
        await_step("log");
        const std::vector<pid_t> processes = test::children_of(launcher);
        killed = processes.at(2);
        kill(launcher, SIGSTOP);  // until all have ended: then they have no command lines
        kill(killed, SIGKILL);
        for (const pid_t process : processes) {
          EXPECT_TRUE(test::await(
              [&] { return read_file(concat("/proc/", process, "/cmdline")).empty(); }));
        }
        kill(launcher, SIGCONT);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err, HasSubstr(concat("error: rank 2 (process 2, pid ", killed)));
}

TEST_F(LaunchMeeting, AStoppedProcessIsNamedAndDoesNotHoldUpTheEnd) {
  Clock::time_point stopped;
  pid_t process = 0;
  const ProgramResult result = launch(
      {"--processes", "2", "--grace", "60"},
      {"--data", write_text(), "--steps", "1000000", "--log", path("log"), "--timeout", "10"},
      [&](pid_t launcher) {
        await_step("log");
        process = test::children_of(launcher).at(1);
        kill(process, SIGSTOP);
        stopped = Clock::now();
      });
  EXPECT_LT(Clock::now() - stopped, kSoon + kSoon);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr(concat("tessera: rank 1 (process 1, pid ", process)),
                    HasSubstr("was stopped by signal 19"), HasSubstr("error: rank 0 (process 0"),
                    HasSubstr("failed with exit code 1")));
}

TEST_F(LaunchMeeting, ASignalFromTheParentToOneProcessEndsTheRun) {
  ScopedVariables variables{{"RANK", "0"},
                            {"WORLD_SIZE", "2"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", port_of_test()}};
  const std::vector<std::string> arguments{"--data",  write_text(), "--steps",
                                           "1000000", "--log",      path("log")};
  Clock::time_point signalled;
  std::thread first([&] {
    const std::string line = in_shell([&] {
      std::vector<std::string> all = small_training();
      all.insert(all.end(), arguments.begin(), arguments.end());
      return all;
    }());
    [[maybe_unused]] const int code =
        std::system(("RANK=0 " + line + " >" + path("first") + " 2>&1").c_str());
  });
  variables.set("RANK", "1");
  const ProgramResult second = train(arguments, [&](pid_t process) {  // a child of this test
    await_step("log");
    kill(process, SIGTERM);
    signalled = Clock::now();
  });
  first.join();
  EXPECT_LT(Clock::now() - signalled, kSoon);
  EXPECT_THAT(read_file(path("first")), HasSubstr("process 1 was ended by SIGTERM"));
  EXPECT_EQ(second.exit_code, 1) << second.err;
}

}  // namespace
}  // namespace tessera::launch_meeting_test
