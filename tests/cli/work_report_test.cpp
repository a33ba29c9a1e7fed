#include "run/work_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

// What is shown of work outside of steps, at times of the test's own.
namespace tessera::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

std::vector<std::string> texts_at(WorkReport& report, const HostWork& work, int ms) {
  std::vector<std::string> texts;
  for (const auto& shown : report.at(work, WorkReport::Clock::time_point(milliseconds(ms)))) {
    texts.push_back(shown.is_over ? "over: " + shown.text : shown.text);
  }
  return texts;
}

class WorkReports : public testing::Test {
 protected:
  void begin_hash() { work_.begin(HostTask::kHash, 4096 * kMebibyte); }
  void hash(std::int64_t mebibytes) { work_.advance(HostTask::kHash, mebibytes * kMebibyte); }
  HostWork work_;
};

TEST_F(WorkReports, HaveNothingOfShortWork) {
  WorkReport watched(true), report(false);
  const auto expect_nothing_at = [&](int ms) {
    EXPECT_THAT(texts_at(watched, work_, ms), IsEmpty());
    EXPECT_THAT(texts_at(report, work_, ms), IsEmpty());
  };
  expect_nothing_at(0);
  begin_hash();
  expect_nothing_at(1000);
  hash(4000);
  expect_nothing_at(1999);
  hash(96);
  expect_nothing_at(2100);
}

TEST_F(WorkReports, AreALineAfterASecondEveryTenSecondsAndAtTheEnd) {
  WorkReport report(false);
  begin_hash();
  texts_at(report, work_, 0);
  hash(1024);
  EXPECT_THAT(texts_at(report, work_, 1000),
              ElementsAre("hashing the parameters: 25.0 % of 4.00 GiB, ETA 0:03"));
  hash(1024);
  EXPECT_THAT(texts_at(report, work_, 10999), IsEmpty());
  EXPECT_THAT(texts_at(report, work_, 11000),
              ElementsAre("hashing the parameters: 50.0 % of 4.00 GiB, ETA 0:11"));
  hash(2048);
  EXPECT_THAT(texts_at(report, work_, 12500),
              ElementsAre("over: hashing the parameters: 4.00 GiB in 12.5 s"));
  EXPECT_THAT(texts_at(report, work_, 14000), IsEmpty());
}

TEST_F(WorkReports, ShowEachMomentToWhoWatches) {
  WorkReport report(true);
  begin_hash();
  texts_at(report, work_, 0);
  for (const int ms : {1000, 1100, 1200}) {
    hash(1);
    EXPECT_EQ(texts_at(report, work_, ms).size(), 1U) << ms;
  }
}

TEST_F(WorkReports, BeginAnewWithAnotherTask) {
  WorkReport report(false);
  work_.begin(HostTask::kTouchPages, 1024 * kMebibyte);
  texts_at(report, work_, 0);
  EXPECT_THAT(texts_at(report, work_, 1500), ElementsAre("taking host memory: 0.0 % of 1.00 GiB"));
  work_.advance(HostTask::kTouchPages, 1024 * kMebibyte);
  begin_hash();
  EXPECT_THAT(texts_at(report, work_, 2000),
              ElementsAre("over: taking host memory: 1.00 GiB in 2.0 s"));
  EXPECT_THAT(texts_at(report, work_, 2900), IsEmpty());
}

/// A run that is ended says so itself.
TEST_F(WorkReports, DoNotCallWorkDoneThatWasGivenUp) {
  WorkReport report(false);
  begin_hash();
  texts_at(report, work_, 0);
  EXPECT_EQ(texts_at(report, work_, 1000).size(), 1U);
  EXPECT_THAT(texts_at(report, work_, 2000), IsEmpty());
}

}  // namespace
}  // namespace tessera::cli
