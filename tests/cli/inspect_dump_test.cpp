#include <gmock/gmock.h>

#include <filesystem>
#include <set>
#include <thread>

#include "cli/launched_program.h"

// Dumps of launched processes, and what tessera inspect-dump says of them.
namespace tessera {
namespace {

using test::children_of;
using test::ProgramResult;
using ::testing::HasSubstr;
using ::testing::Not;

class InspectDump : public test::LaunchTest {
 protected:
  int dumps() const {
    if (!std::filesystem::exists(path("out"))) return 0;
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path("out"))) {
      count += entry.path().filename().string().starts_with("tessera_dump_") &&
               entry.path().extension() == ".json";
    }
    return count;
  }
  static void wait_until(const std::function<bool()>& holds) { EXPECT_TRUE(test::await(holds)); }
  bool has_steps() const {
    return test::read_file(path("out/log")).find("\"step\"") != std::string::npos;
  }
  ProgramResult two(const std::vector<std::string>& more,
                    const std::function<void(pid_t)>& while_running = {}) const {
    std::vector<std::string> all{"--data", path("data.txt"), "--sample-tokens", "0", "--quiet"};
    all.insert(all.end(), more.begin(), more.end());
    return launch({"--processes", "2", "--ranks-per-process", "1"}, all, while_running);
  }
};

TEST_F(InspectDump, SigquitToTheLauncherAsksAllProcessesAndTheRunGoesOn) {
  write_text();
  const auto hash = [&](const std::string& log) {
    return read_log(log).back().at("parameters_sha256").get<std::string>();
  };
  const ProgramResult result =
      two({"--steps", "1000000", "--log", path("out/log")}, [&](pid_t launcher) {
        wait_until([&] { return has_steps(); });
        kill(launcher, SIGQUIT);
        wait_until([&] { return dumps() == 2; });
        kill(launcher, SIGQUIT);
        wait_until([&] { return dumps() == 4; });
        kill(launcher, SIGINT);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_THAT(result.err, HasSubstr("what the ranks were doing is in "));
  const std::string steps = std::to_string(read_log("out/log").back().at("steps").get<int>());
  ASSERT_EQ(two({"--steps", "1000000", "--stop-after", steps, "--log", path("plain")}).exit_code,
            0);
  EXPECT_EQ(hash("out/log"), hash("plain"));
  const ProgramResult told = run({"inspect-dump", path("out"), "--trace", path("trace.json")});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  const auto trace = nlohmann::json::parse(test::read_file(path("trace.json")));
  std::set<int> ranks;
  for (const auto& event : trace.at("traceEvents")) ranks.insert(event.at("pid").get<int>());
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  EXPECT_THAT(told.out, HasSubstr("SIGQUIT"));
  EXPECT_THAT(told.out, HasSubstr("\nrank 1 (pid "));
}

TEST_F(InspectDump, NamesTheProcessThatStoodStill) {
  write_text();
  pid_t stopped = 0;
  const ProgramResult result = two(
      {"--steps", "10000000", "--timeout", "10", "--log", path("out/log")}, [&](pid_t launcher) {
        wait_until([&] { return has_steps(); });
        const auto processes = children_of(launcher);
        ASSERT_EQ(processes.size(), 2U);
        stopped = processes[1];
        kill(stopped, SIGSTOP);
        wait_until([&] { return dumps() >= 1; });
        kill(stopped, SIGKILL);
      });
  EXPECT_NE(result.exit_code, 0);
  const ProgramResult told = run({"inspect-dump", path("out")});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("rank 1 did not arrive within 10000 ms"));
  EXPECT_THAT(told.out, HasSubstr("no dump of rank 1"));
  EXPECT_THAT(told.out, HasSubstr("rank 1 was missing in "));
  EXPECT_THAT(told.out, HasSubstr("rank 0 waited there since "));
  EXPECT_THAT(told.out, HasSubstr("rank 1 has left no dump"));
  const auto object = nlohmann::json::parse(run({"inspect-dump", path("out"), "--json"}).out);
  EXPECT_EQ(object.at("without_dump"), nlohmann::json({1}));
  EXPECT_EQ(object.at("waits").at(0).at("missing").at(0).at("rank"), 1);
}

TEST_F(InspectDump, RefusesWhatIsNoDump) {
  const ProgramResult none = run({"inspect-dump", path("")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("there is no dump"));
  const ProgramResult other = run({"inspect-dump", write("x.json", "{}")});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("no dump of tessera"));
}

TEST_F(InspectDump, AnErrorOfTheUserLeavesNoDump) {
  write_text();
  const ProgramResult result = two({"--steps", "50", "--learning-rate", "1e30", "--clip-norm", "0",
                                    "--warmup-steps", "0", "--log", path("out/log")});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("diverged"));
  EXPECT_EQ(dumps(), 0);
}

}  // namespace
}  // namespace tessera
