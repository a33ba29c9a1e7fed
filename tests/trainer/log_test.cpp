#include "tessera/trainer/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/tiny_model.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/kernels/numerics.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> result;
  for (const auto& [key, value] : object.items()) result.push_back(key);
  return result;
}

std::vector<json> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

class RunLogTest : public ::testing::Test {
 protected:
  const test::TemporaryFolder folder_;
  const std::string path_ = folder_.path("run.jsonl");
};

TEST_F(RunLogTest, ARunIsALineEachForTheRunItsStepsAndItsSummary) {
  const Model model = test::tiny_model();
  const test::TinyData data;
  TrainerOptions options{.strategy = "ZeRO-2", .ranks = 3, .steps = 4};
  options.threads_per_rank = 1;
  options.time_actions = false;
  const Trainer trainer(model, data, options);
  RunLog log(path_);
  log.run({.version = "1.2", .parameters = 5}, {{"ranks", 3}, {"seed", 7}});
  std::vector<StepRecord> records;
  const TrainingSummary summary = trainer.train([&](const StepRecord& record) {
    records.push_back(record);
    log.step(record, 0.5);
    return true;
  });
  log.summary(trainer.plan(), summary, {.matmul_flops_per_second = 1e9, .mfu = 0.25});

  const std::vector<json> lines = read_lines(path_);
  ASSERT_EQ(lines.size(), 6U);
  json run = lines[0];
  EXPECT_THAT(run["date"].get<std::string>(), ::testing::MatchesRegex("20..-..-..T..:..:..Z"));
  EXPECT_FALSE(run["host"].get<std::string>().empty());
  run.erase("date");
  run.erase("host");
  EXPECT_EQ(run, (json{{"kind", "run"},
                       {"version", "1.2"},
                       {"numerics", kNumericsVersion},
                       {"parameters", 5},
                       {"ranks", 3},
                       {"seed", 7}}));
  for (std::size_t i = 0; i < records.size(); ++i) {
    // Exact: numbers round-trip.
    EXPECT_EQ(lines[i + 1], (json{{"kind", "step"},
                                  {"step", records[i].step},
                                  {"loss", records[i].loss},
                                  {"grad_norm", records[i].gradient_norm},
                                  {"learning_rate", records[i].learning_rate},
                                  {"tokens", records[i].tokens},
                                  {"seconds", records[i].seconds},
                                  {"tokens_per_second", records[i].tokens_per_second},
                                  {"positions_per_second", records[i].positions_per_second},
                                  {"mfu", 0.5},
                                  {"peak_bytes", records[i].peak_bytes},
                                  {"exposed_seconds", nullptr}}));
  }
  const json& last = lines.back();
  EXPECT_EQ(last["kind"], "summary");
  EXPECT_EQ(last["strategy"], "zero2");
  EXPECT_EQ(last["ranks"], 3);
  EXPECT_EQ(last["mfu"], 0.25);
  EXPECT_EQ(last["device"], "cpu");
  EXPECT_EQ(last["cuda_graph"], false);
  EXPECT_EQ(last["tokens_per_second"], summary.tokens_per_second);
  EXPECT_EQ(last["positions_per_second"], summary.positions_per_second);
  EXPECT_EQ(last["parameters_sha256"], summary.parameters_sha256);
  EXPECT_EQ(last["copied_bytes"], 0);
  EXPECT_EQ(last["peak_bytes"]["predicted"], last["peak_bytes"]["measured"]);
  EXPECT_EQ(last["peak_bytes"]["measured"]["total"], summary.measured_memory.total);
  EXPECT_EQ(keys(last["peak_bytes"]["measured"]).size(), 1U + kMemoryCategories);
  const json counted = last["sent_bytes"]["counted"];
  EXPECT_EQ(last["sent_bytes"]["predicted"], counted);
  EXPECT_GT(counted["reduce_scatter"], 0);
  EXPECT_GT(last["collectives"]["all_gather"], 0);
}

TEST_F(RunLogTest, ANoteIsALine) {
  RunLog(path_).note("4 ranks share GPU 0");
  EXPECT_EQ(read_lines(path_).at(0), (json{{"kind", "note"}, {"text", "4 ranks share GPU 0"}}));
}

TEST_F(RunLogTest, AnEvaluationIsALine) {
  RunLog(path_).evaluation({.step = 100, .loss = 0.75, .perplexity = 2.117, .tokens = 4096});
  EXPECT_EQ(read_lines(path_).at(0), (json{{"kind", "evaluation"},
                                           {"step", 100},
                                           {"loss", 0.75},
                                           {"perplexity", 2.117},
                                           {"tokens", 4096}}));
}

TEST_F(RunLogTest, AnEvaluationHasItsAccuracyAndTheBestSoFar) {
  RunLog(path_).evaluation(
      {.step = 200,
       .loss = 0.75,
       .tokens = 8,
       .correct = 6,
       .best = BestEvaluation{.loss = 0.5, .step = 100, .without_improvement = 1}});
  const auto line = read_lines(path_).at(0);
  EXPECT_EQ(line["mean_token_accuracy"], 0.75);
  EXPECT_EQ(line["correct_tokens"], 6);
  EXPECT_EQ(line["best_loss"], 0.5);
  EXPECT_EQ(line["best_step"], 100);
  EXPECT_EQ(line["without_improvement"], 1);
}

TEST_F(RunLogTest, WhatJsonHasNoNumberForIsNull) {
  RunLog(path_).step({.step = 1, .loss = std::numeric_limits<double>::quiet_NaN()}, {});
  EXPECT_TRUE(read_lines(path_).at(0)["loss"].is_null());
  EXPECT_TRUE(read_lines(path_).at(0)["mfu"].is_null());
  RunLog(path_).evaluation({.perplexity = std::numeric_limits<double>::infinity()});
  EXPECT_TRUE(read_lines(path_).at(0)["perplexity"].is_null());
}

TEST_F(RunLogTest, AStepSaysWhatWasExposed) {
  RunLog(path_).step({.step = 1, .exposed_seconds = 0.25}, {});
  EXPECT_EQ(read_lines(path_).at(0)["exposed_seconds"], 0.25);
}

TEST_F(RunLogTest, IsExtendedOnRequest) {
  RunLog(path_).note("first");
  RunLog(path_, Existing::kExtend).note("second");
  EXPECT_EQ(read_lines(path_).size(), 2U);
  RunLog(path_).note("third");
  EXPECT_EQ(read_lines(path_).size(), 1U);
}

TEST_F(RunLogTest, FailuresToWriteAreErrors) {
  try {
    RunLog("/dev/null/log.jsonl");
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("/dev/null/log.jsonl"));
  }
  RunLog full("/dev/full");  // opens, and has no room
  EXPECT_THROW(full.step({}, {}), Error);
}

}  // namespace
}  // namespace tessera
