#include "work_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

// What is shown of work outside of steps, at times of the test's own.
namespace tessera::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Extent = std::optional<HostWork::Extent>;

Extent hashing(std::int64_t megabytes) {
  return HostWork::Extent{HostTask::kHash, megabytes << 20, std::int64_t{4096} << 20};
}

std::vector<std::string> texts_at(WorkReport& report, const Extent& current, int ms) {
  std::vector<std::string> texts;
  for (const auto& shown : report.at(current, WorkReport::Clock::time_point(milliseconds(ms)))) {
    texts.push_back(shown.is_over ? "over: " + shown.text : shown.text);
  }
  return texts;
}

TEST(WorkReport, HasNothingOfShortWork) {
  for (const bool is_watched : {true, false}) {
    WorkReport report(is_watched);
    EXPECT_THAT(texts_at(report, std::nullopt, 0), IsEmpty());
    EXPECT_THAT(texts_at(report, hashing(0), 1000), IsEmpty());
    EXPECT_THAT(texts_at(report, hashing(4000), 1999), IsEmpty());
    EXPECT_THAT(texts_at(report, std::nullopt, 2100), IsEmpty());
  }
}

TEST(WorkReport, IsALineAfterASecondEveryTenSecondsAndAtTheEnd) {
  WorkReport report(false);
  texts_at(report, hashing(0), 0);
  EXPECT_THAT(texts_at(report, hashing(1024), 1000),
              ElementsAre("hashing the parameters: 25.0 % of 4.00 GiB, ETA 0:03"));
  EXPECT_THAT(texts_at(report, hashing(1025), 10999), IsEmpty());
  EXPECT_THAT(texts_at(report, hashing(2048), 11000),
              ElementsAre("hashing the parameters: 50.0 % of 4.00 GiB, ETA 0:11"));
  EXPECT_THAT(texts_at(report, std::nullopt, 12500),
              ElementsAre("over: hashing the parameters: 4.00 GiB in 12.5 s"));
  EXPECT_THAT(texts_at(report, std::nullopt, 14000), IsEmpty());
}

TEST(WorkReport, ShowsWhoWatchesEachMoment) {
  WorkReport report(true);
  texts_at(report, hashing(0), 0);
  for (const int ms : {1000, 1100, 1200}) {
    EXPECT_EQ(texts_at(report, hashing(1024), ms).size(), 1U) << ms;
  }
}

TEST(WorkReport, BeginsAnewWithAnotherTask) {
  WorkReport report(false);
  const Extent taking = HostWork::Extent{HostTask::kTouchPages, 0, std::int64_t{1} << 30};
  texts_at(report, taking, 0);
  EXPECT_THAT(texts_at(report, taking, 1500), ElementsAre("taking host memory: 0.0 % of 1.00 GiB"));
  EXPECT_THAT(texts_at(report, hashing(0), 2000),
              ElementsAre("over: taking host memory: 1.00 GiB in 2.0 s"));
  EXPECT_THAT(texts_at(report, hashing(1), 2900), IsEmpty());
}

}  // namespace
}  // namespace tessera::cli
