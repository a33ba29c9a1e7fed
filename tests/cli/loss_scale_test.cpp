#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/program.h"

// What a run says of its loss scale and of the steps that it skips.
namespace tessera::loss_scale_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LossScale : public test::ProgramTest {
 protected:
  test::ProgramResult train(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{"--data",  write_text(), "--ranks",  "2",
                                       "--steps", "6",          "--device", "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return ProgramTest::train(arguments);
  }
  std::vector<nlohmann::json> log() const { return read_log("log.jsonl"); }
};

/// Steps so large that gradients overflow with such a scale, after the first step.
const std::vector<std::string> kLargeSteps{
    "--optimizer",    "sgd", "--learning-rate", "50",      "--clip-norm",          "0",
    "--warmup-steps", "0",   "--loss-scale",    "dynamic", "--loss-scale-initial", "1.7e38"};

TEST_F(LossScale, SkippedStepsAreInBarLogAndTable) {
  std::vector<std::string> flags = kLargeSteps;
  for (const char* flag : {"--log", "log.jsonl", "--csv", "run.csv", "--verbose"}) {
    flags.emplace_back(flag);
  }
  const test::ProgramResult result = train(flags);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("  1 skipped  "));
  int skipped = 0;
  double scale = 0.0;
  for (const nlohmann::json& line : log()) {
    if (line.at("kind") == "summary") {
      EXPECT_EQ(line.at("skipped_steps"), skipped);
    }
    if (line.at("kind") != "step") continue;
    EXPECT_TRUE(line.at("loss").is_number());
    if (line.at("skipped").get<bool>()) {
      ++skipped;
      scale = line.at("loss_scale").get<double>();
    }
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 6);
  EXPECT_GT(scale, 1e30);
  const std::string table = test::read_file(path("run.csv"));
  EXPECT_THAT(table,
              AllOf(HasSubstr(",loss_scale,skipped\n"), HasSubstr(",1\n"), HasSubstr(",0\n")));
}

TEST_F(LossScale, WithoutItNothingIsSaidOfIt) {
  const test::ProgramResult result = train({"--log", "log.jsonl", "--csv", "run.csv"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const nlohmann::json& line : log()) EXPECT_FALSE(line.contains("skipped")) << line;
  EXPECT_THAT(test::read_file(path("run.csv")), Not(HasSubstr("loss_scale")));
}

TEST_F(LossScale, AFixedOneOfAPowerOfTwoKeepsTheBits) {
  std::vector<std::string> hashes;
  for (const char* scale : {"none", "65536"}) {
    const test::ProgramResult result =
        train({"--loss-scale", scale, "--log", "log.jsonl", "--overwrite"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    hashes.push_back(log().back().at("parameters_sha256").get<std::string>());
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST_F(LossScale, AtItsMinimumTheRunEndsAndNamesTheTensor) {
  std::vector<std::string> flags = kLargeSteps;
  for (const char* flag : {"--loss-scale-dialect", "deepspeed", "--loss-scale-hysteresis", "1",
                           "--loss-scale-minimum", "1.7e38"}) {
    flags.emplace_back(flag);
  }
  const test::ProgramResult result = train(flags);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("in step 2 the gradient of "), HasSubstr(" in unit "),
                                HasSubstr("which cannot be lowered any more")));
}

TEST_F(LossScale, WhatADialectDoesNotHaveIsRefused) {
  const test::ProgramResult result =
      train({"--loss-scale", "dynamic", "--loss-scale-hysteresis", "3"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("the loss scale dialect torch has none"));
}

}  // namespace
}  // namespace tessera::loss_scale_test
