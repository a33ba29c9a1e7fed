#include "tessera/lab/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "temporary_folder.h"
#include "tessera/core/error.h"

namespace tessera::comparison_test {
namespace {

using ::testing::HasSubstr;

CellRun some_run() {
  CellRun run{.step_seconds = {0.1, 0.25, 1.0 / 3.0}, .losses = {5.5, 1e-3}};
  run.peak.total = 1000;
  run.peak.by_category[MemoryCategory::kOptimizer] = 600;
  run.traffic.sent_of(CollectiveKind::kAllGather) = 77;
  run.traffic.calls_of(CollectiveKind::kAllGather) = 3;
  run.traffic.copied_bytes = 5;
  run.traffic.to_host_bytes = 6;
  run.traffic.from_disk_bytes = 8;
  run.exposed_seconds = 0.01;
  run.parameters_sha256 = "abc";
  return run;
}

Comparison some_comparison() {
  Comparison all{.version = "1.2",
                 .date = "2026-01-01T00:00:00Z",
                 .machine = {{"processor", "a \"fast\" one"}, {"cores", "2"}},
                 .command = {"compare", "--data", "a b"},
                 .model = "gpt2-tiny",
                 .data = "12 tokens",
                 .profile = "h100-sxm",
                 .profile_source = "of the file here.json",
                 .steps = 4,
                 .warmup_steps = 1,
                 .repeats = 1,
                 .axes = {"strategy", "ranks"}};
  ComparedCell done{.settings = {{"strategy", "zero1"}, {"ranks", "2"}, {"micro_batch", "8"}},
                    .state = CellState::kDone,
                    .ranks = 2,
                    .tokens_per_step = 4096,
                    .runs = {some_run()},
                    .timeline = {{"compute", "forward h.0", 0.0, 0.5}}};
  CellPrediction& predicted = done.predicted.emplace();
  predicted.peak = done.runs[0].peak;
  predicted.device_bytes = 2000;
  predicted.time = SimulatedTime{
      0.2,
      0.0,
      0.1,
      {{"gather", "all-gather h.1", 0.1, 0.2}, {"compute", "forward h.1 m0", 0.1, 0.2, 1, 1, 0}},
      0.03,
      0.04};
  all.cells = {done,
               {.settings = {{"strategy", "hybrid_shard"}, {"ranks", "3"}},
                .state = CellState::kImpossible,
                .why = "3 ranks are not 2 replicas",
                .ranks = 3},
               {.settings = {{"strategy", "zero2"}, {"ranks", "2"}}, .ranks = 2}};
  return all;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return text.replace(at, what.size(), by);
}

std::string refusal(const std::string& text) {
  try {
    parse_comparison(text, "r.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "none";
}

TEST(Comparison, ReadsBackAsItWasWritten) {
  const Comparison all = some_comparison();
  EXPECT_EQ(parse_comparison(to_text(all), "r.json"), all);
  EXPECT_EQ(to_text(parse_comparison(to_text(all), "r.json")), to_text(all));
  const Comparison empty;
  EXPECT_EQ(parse_comparison(to_text(empty), "r.json"), empty);
}

TEST(Comparison, ALossThatIsNoNumberIsReadBackAsNan) {
  Comparison all = some_comparison();
  all.cells[0].runs[0].losses = {std::numeric_limits<double>::infinity(), 2.0};
  const Comparison back = parse_comparison(to_text(all), "r.json");
  EXPECT_TRUE(std::isnan(back.cells[0].runs[0].losses[0]));
  EXPECT_EQ(back.cells[0].runs[0].losses[1], 2.0);
}

TEST(Comparison, ACellTellsItsSettings) {
  const ComparedCell cell = some_comparison().cells[0];
  EXPECT_EQ(cell.setting("micro_batch"), "8");
  EXPECT_EQ(cell.setting("precision"), "");
}

TEST(Comparison, IsReadFromAFile) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("results.json", to_text(some_comparison()));
  EXPECT_EQ(read_comparison(path), some_comparison());
  EXPECT_THROW(read_comparison(folder.path("none.json")), Error);
}

TEST(Comparison, WhatIsWrongIsNamedWithItsPlace) {
  const std::string good = to_text(some_comparison());
  EXPECT_EQ(refusal(good), "none");
  EXPECT_THAT(refusal("[1]"), HasSubstr("the results 'r.json' must be an object"));
  EXPECT_THAT(refusal(good.substr(0, good.size() / 2)), HasSubstr("are not JSON"));
  EXPECT_THAT(refusal(replaced(good, "\"comparison\"", "\"simulation\"")),
              HasSubstr("no results of tessera compare"));
  EXPECT_THAT(refusal(replaced(good, "\"format\": 1", "\"format\": 2")),
              HasSubstr("format 2, and this program reads format 1"));
  EXPECT_THAT(refusal(replaced(good, "\"axes\"", "\"axis\"")), HasSubstr("has no 'axes'"));
  EXPECT_THAT(refusal(replaced(good, "\"version\"", "\"vversion\": 1, \"version\"")),
              HasSubstr("unknown key 'vversion'; did you mean 'version'?"));
  EXPECT_THAT(refusal(replaced(good, "\"state\": \"done\"", "\"state\": \"well\"")),
              HasSubstr("'cells', item 1: 'state' must be missing, done, predicted, failed or "
                        "impossible"));
  EXPECT_THAT(refusal(replaced(good, "0.25", "-0.25")),
              HasSubstr("'repeats', item 1, 'step_seconds', item 2 must be seconds"));
  EXPECT_THAT(refusal(replaced(good, "\"optimizer\": 600", "\"optimizer\": 0.5")),
              HasSubstr("'optimizer' must be a whole number of at least 0, not 0.5"));
  EXPECT_THAT(refusal(replaced(good, "\"all_gather\": 77", "\"all_gather\": -1")),
              HasSubstr("not -1"));
  EXPECT_THAT(refusal(replaced(good, "\"end\": 0.5", "\"end\": -1")), HasSubstr("'end'"));
  EXPECT_THAT(refusal(replaced(good, "\"strategy\": \"zero1\"", "\"strategy\": 1")),
              HasSubstr("'strategy' must be a text, not 1"));
}

}  // namespace
}  // namespace tessera::comparison_test
