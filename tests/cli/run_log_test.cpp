#include "compare/run_log.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "tessera/core/error.h"

namespace tessera::run_log_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunLog : public test::ProgramTest {
 protected:
  /// The log of a run of three steps.
  std::string log() {
    const auto result = train({"--data", write_text(), "--ranks", "2", "--steps", "3", "--quiet",
                               "--log", path("log"), "--sample-tokens", "0"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return test::read_file(path("log"));
  }
  template <typename Read>
  std::string refusal(const Read& read) {
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      return error.what();
    }
    return "none";
  }
};

TEST_F(RunLog, IsReadAndWhatIsCutOffIsRefused) {
  const std::string whole = log();
  const CellRun run = cli::read_run_log(path("log"), 3, 1);
  EXPECT_EQ(run.losses.size(), 3U);
  EXPECT_EQ(run.step_seconds.size(), 2U);
  EXPECT_GT(run.peak.total, 0);
  EXPECT_GT(run.traffic.sent_of(CollectiveKind::kAllReduce), 0);
  EXPECT_EQ(run.parameters_sha256.size(), 64U);
  const auto refused = [&](const std::string& text) {
    const std::string name = write("broken", text);
    return refusal([&] { cli::read_run_log(name, 3, 1); });
  };
  EXPECT_EQ(refused(whole), "none");
  EXPECT_THAT(refused(whole.substr(0, whole.size() - 10)), HasSubstr("is broken in line "));
  EXPECT_THAT(refused(whole.substr(0, whole.rfind('\n', whole.size() - 2) + 1)),
              HasSubstr("has 3 of 3 steps and no summary"));
  EXPECT_THAT(refused("{\"kind\": \"step\"}\n"), HasSubstr("is broken in line 1"));
  EXPECT_THAT(refused("{\"kind\": 7}\n"), HasSubstr("is broken in line 1"));
  EXPECT_THAT(refused(""), HasSubstr("has 0 of 3 steps"));
  EXPECT_THAT(refusal([&] { cli::read_run_log(path("none"), 3, 1); }), HasSubstr("cannot be read"));
}

TEST_F(RunLog, ALossThatIsNoNumberIsNan) {
  std::string text = log();
  const std::size_t at = text.find("\"loss\":") + 7;
  text.replace(at, text.find(',', at) - at, "null");
  const CellRun run = cli::read_run_log(write("nan", text), 3, 0);
  EXPECT_TRUE(std::isnan(run.losses[0]));
  EXPECT_FALSE(std::isnan(run.losses[1]));
}

TEST_F(RunLog, ATimelineHasTheWorkOfRankZero) {
  const auto slice = [](int rank, const char* lane, const char* name, double begin, double micros) {
    return nlohmann::json{
        {"ph", "X"},    {"pid", rank}, {"tid", 1},      {"cat", lane},
        {"name", name}, {"ts", begin}, {"dur", micros}, {"args", nlohmann::json::object()}};
  };
  nlohmann::json trace;
  trace["traceEvents"] = {
      slice(0, "gather", "all-gather", 1000.0, 2.0),
      slice(0, "compute", "reshard", 1001.0, 0.125),
      slice(1, "compute", "forward", 900.0, 9.0),
      slice(0, "compute", "forward", 1002.0, 4.0),
      {{"ph", "X"}, {"pid", 0}, {"tid", 0}, {"name", "reads"}, {"ts", 1.0}, {"dur", 2.0}},
      {{"ph", "C"}, {"pid", 0}, {"name", "memory"}}};
  const auto spans = cli::read_timeline(write("trace", trace.dump()), 2);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].lane, "gather");
  EXPECT_EQ(spans[0].begin, 0.0);
  EXPECT_DOUBLE_EQ(spans[0].end, 2e-6);
  EXPECT_EQ(spans[1].name, "forward");
  EXPECT_DOUBLE_EQ(spans[1].begin, 2e-6);
  EXPECT_THAT(refusal([&] { cli::read_timeline(write("t", trace.dump().substr(0, 50)), 2); }),
              HasSubstr("is broken"));
  EXPECT_THAT(refusal([&] { cli::read_timeline(path("none"), 2); }), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace tessera::run_log_test
