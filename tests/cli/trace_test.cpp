#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cli/launched_program.h"
#include "support/trace_check.h"

// Traces that the program writes.
namespace tessera::cli_trace_test {
namespace {

using test::ProgramResult;
using ::testing::HasSubstr;

class Traces : public test::LaunchTest {
 protected:
  nlohmann::json trace(const std::string& name) const {
    return nlohmann::json::parse(test::read_file(path(name)));
  }
  static std::set<int> steps_of(const test::CheckedTrace& trace) {
    std::set<int> steps;
    for (const auto& slice : trace.actions()) steps.insert(slice.at("args").at("step").get<int>());
    return steps;
  }
};

TEST_F(Traces, OfTwoProcessesAreOneWithOneClock) {
  const ProgramResult result =
      launch({"--processes", "2", "--ranks-per-process", "2"},
             {"--data", write_text(), "--steps", "6", "--trace", path("t.json"), "--sample-tokens",
              "0", "--strategy", "full_shard"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("trace     3 steps in "));
  const auto file = trace("t.json");
  const test::CheckedTrace all(file);
  EXPECT_EQ(all.ranks(), (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(steps_of(all), (std::set<int>{3, 4, 5}));
  EXPECT_THAT(file.at("otherData").at("command").get<std::string>(), HasSubstr(" train "));
  // Nobody ends a collective of all ranks before the last has come.
  std::map<std::pair<int, int>, std::pair<double, double>> meetings;  // latest begin, first end
  for (const auto& slice : all.actions()) {
    if (slice.at("args").value("group", "") != "shard") continue;
    const auto key =
        std::pair(slice.at("args").at("step").get<int>(), slice.at("args").at("action").get<int>());
    const double begin = slice.at("ts"), end = begin + slice.at("dur").get<double>();
    auto [it, is_new] = meetings.try_emplace(key, begin, end);
    it->second = {std::max(it->second.first, begin), std::min(it->second.second, end)};
  }
  ASSERT_FALSE(meetings.empty());
  for (const auto& [action, times] : meetings) {
    EXPECT_LT(times.first, times.second + 1.0) << "step " << action.first;
  }
}

TEST_F(Traces, AreWholeAfterCtrlC) {
  const ProgramResult result = train(
      {"--data", write_text(), "--ranks", "2", "--steps", "10000000", "--trace", path("t.json"),
       "--trace-steps", "2-9999999", "--sample-tokens", "0", "--log", path("log")},
      [&](pid_t program) {
        test::await([this] { return std::filesystem::exists(path("t.json")); });
        kill(program, SIGINT);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  const test::CheckedTrace all(trace("t.json"));
  EXPECT_TRUE(steps_of(all).contains(2));
  EXPECT_THAT(result.out, HasSubstr(" in " + path("t.json")));
}

TEST_F(Traces, AreWholeAfterAKill) {
  const ProgramResult result =
      train({"--data", write_text(), "--steps", "10000000", "--trace", path("t.json"), "--quiet",
             "--trace-steps", "1-9999999", "--sample-tokens", "0"},
            [&](pid_t program) {
              test::await([this] { return !test::read_file(path("t.json")).empty(); });
              kill(program, SIGKILL);
            });
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_TRUE(steps_of(test::CheckedTrace(trace("t.json"))).contains(1));
}

TEST_F(Traces, ThatCannotBeWrittenAreRefusedBeforeTheRun) {
  const std::string data = write_text();
  const auto error = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--data", data, "--steps", "4", "--log", path("log")});
    const ProgramResult result = train(more);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_FALSE(std::filesystem::exists(path("log")));
    return result.err;
  };
  EXPECT_THAT(error({"--trace", path("")}), HasSubstr("--trace"));
  EXPECT_THAT(error({"--trace", data}), HasSubstr("--trace would write over"));
  EXPECT_THAT(error({"--trace", path("t"), "--trace-steps", "5"}), HasSubstr("steps 1 to 4"));
  write("old.json", "{}");
  EXPECT_THAT(error({"--trace", path("old.json")}), HasSubstr("holds something already"));
  EXPECT_THAT(error({"--trace", path("old.json"), "--append"}), HasSubstr("one trace of two"));
}

TEST_F(Traces, AreMadeOfEvaluationsAndSimulatedSteps) {
  const ProgramResult evaluated =
      run({"evaluate", "--eval-data", write_text(), "--layers", "1", "--heads", "2", "--width",
           "16", "--context-length", "16", "--ranks", "2", "--trace", path("e.json"),
           "--trace-steps", "1-2"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.out, HasSubstr("trace     2 batches in "));
  EXPECT_EQ(steps_of(test::CheckedTrace(trace("e.json"))), (std::set<int>{1, 2}));
  const ProgramResult simulated = run({"simulate", "--model", "gpt2-tiny", "--ranks", "64",
                                       "--strategy", "full_shard", "--trace", path("s.json")});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  const test::CheckedTrace step(trace("s.json"));
  EXPECT_EQ(step.ranks(), (std::set<int>{0}));
  EXPECT_GT(step.arrows(), 10U);
  const ProgramResult swept = run({"simulate", "--sweep", "ranks=2,4", "--trace", path("x.json")});
  EXPECT_EQ(swept.exit_code, 2);
  EXPECT_THAT(swept.err, HasSubstr("--sweep of many"));
}

}  // namespace
}  // namespace tessera::cli_trace_test
