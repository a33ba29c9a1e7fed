#include "tessera/trainer/csv_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "temporary_folder.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(CsvLog, WhatIsNotKnownIsAnEmptyCell) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("run.csv");
  CsvLog log(path);
  log.step({.step = 1, .loss = 0.5, .peak_bytes = 7, .exposed_seconds = 0.25}, 0.125);
  log.step({.step = 2, .loss = 0.5, .peak_bytes = 7}, std::nullopt);
  EXPECT_THAT(lines_of(path),
              ElementsAre(StartsWith("step,loss,"), "1,0.5,0,0,0,0,0,0.125,7,0.25,,,,0,",
                          "2,0.5,0,0,0,0,0,,7,,,,,0,"));
}

TEST(CsvLog, AnEvaluationIsARowWithColumnsOfItsOwn) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("run.csv");
  CsvLog log(path);
  log.step({.step = 1, .loss = 0.5}, std::nullopt);
  log.evaluation({.step = 1, .loss = 0.25, .perplexity = 1.5, .tokens = 77});
  log.evaluation({.step = 2, .loss = 0.25, .perplexity = 1.5, .tokens = 80, .correct = 20});
  const std::vector<std::string> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[2], "1,,,,,,,,,,0.25,1.5,77,,");
  EXPECT_EQ(lines[3], "2,,,,,,,,,,0.25,1.5,80,,0.25");
  EXPECT_THAT(lines[0],
              ::testing::EndsWith(",eval_tokens,positions_per_second,eval_mean_token_accuracy"));
  const auto cells = std::ranges::count(lines[0], ',');
  for (const std::string& line : lines) EXPECT_EQ(std::ranges::count(line, ','), cells) << line;
}

TEST(CsvLog, IsExtendedWithoutASecondHeading) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("run.csv");
  for (int run = 0; run < 3; ++run) {
    CsvLog(path, Existing::kExtend).step({.step = 1}, std::nullopt);
  }
  EXPECT_THAT(lines_of(path), ElementsAre(StartsWith("step,"), StartsWith("1,"), StartsWith("1,"),
                                          StartsWith("1,")));
}

TEST(CsvLog, ATableWithOtherColumnsIsNotExtended) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("run.csv", "step,loss\n1,2\n");
  try {
    const CsvLog log(path, Existing::kExtend);
    FAIL() << "extended";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(path), HasSubstr("other columns"),
                                    HasSubstr("`overwrite` to replace it")));
  }
  EXPECT_EQ(lines_of(path).size(), 2U);
}

}  // namespace
}  // namespace tessera
