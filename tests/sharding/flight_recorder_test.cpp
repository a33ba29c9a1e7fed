#include "tessera/sharding/flight_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

// What a rank keeps of its last actions.
namespace tessera::flight_recorder_test {
namespace {

constexpr auto kRecords = static_cast<int>(ActionRing::kRecords);

/// All that a record holds follows from its number.
void put(ActionRing& ring, int number) {
  ring.begin(number % 3, number, 2 * std::int64_t{number}, number);
  ring.end(number + 0.5);
}

void expect_whole(const std::vector<ActionRecord>& records) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    const ActionRecord& r = records[i];
    ASSERT_EQ(r.action, records.front().action + static_cast<int>(i));
    ASSERT_EQ(r.program, r.action % 3);
    ASSERT_EQ(r.step, 2 * std::int64_t{r.action});
    ASSERT_EQ(r.begin, r.action);
    if (i + 1 < records.size()) {
      ASSERT_EQ(r.end, r.action + 0.5);
    }
  }
}

TEST(ActionRing, KeepsTheLastOnes) {
  ActionRing ring;
  EXPECT_TRUE(ring.records().empty());
  for (const int count : {1, kRecords - 1, kRecords, kRecords + 1, 5 * kRecords}) {
    ActionRing fresh;
    for (int i = 0; i < count; ++i) put(fresh, i);
    const auto records = fresh.records();
    ASSERT_EQ(static_cast<int>(records.size()), std::min(count, kRecords));
    EXPECT_EQ(records.back().action, count - 1);
    expect_whole(records);
  }
}

TEST(ActionRing, IsReadWhileItIsWritten) {
  ActionRing ring;
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (int i = 0; i < 200000; ++i) put(ring, i);
    over = true;
  });
  while (!over) {
    const auto records = ring.records();
    EXPECT_LE(records.size(), ActionRing::kRecords);
    expect_whole(records);
    if (::testing::Test::HasFatalFailure()) break;
  }
  writer.join();
  EXPECT_EQ(ring.records().back().action, 199999);
}

TEST(ActionRing, ACollectiveGoesOnInTasksOfItsOwn) {
  ActionRing ring;
  ring.begin(0, 7, 1, 1.0, true);
  ring.end(1.5);
  ring.resume();
  EXPECT_FALSE(ring.records().back().end);
  ring.end(3.0);
  EXPECT_EQ(ring.records().back().end, 3.0);
  ring.begin(0, 8, 1, 4.0);
  ring.end(5.0);
  ring.resume();  // nobody's
  ring.end(6.0);
  EXPECT_EQ(ring.records().back().end, 5.0);
}

TEST(ActionRing, WhatWasIssuedEndsWhenTheHostKnows) {
  ActionRing ring;
  for (int i = 0; i < 3 * kRecords; ++i) ring.begin(0, i, 0, i);
  EXPECT_FALSE(ring.records().front().end);
  ring.settle(9999.0);
  ring.begin(0, 1, 1, 10000.0);
  const auto records = ring.records();
  EXPECT_EQ(records.front().end, 9999.0);
  EXPECT_EQ(records[records.size() - 2].end, 9999.0);
  EXPECT_FALSE(records.back().end);
}

TEST(FlightRecorder, TellsOfTheFirstFailure) {
  std::string told;
  FlightRecorder recorder(
      [&](const FlightRecorder::Failure& failure) { told += failure.what + ";"; });
  EXPECT_FALSE(recorder.failure());
  recorder.fail("one");
  recorder.fail("two");
  EXPECT_EQ(told, "one;");
  EXPECT_EQ(recorder.failure()->what, "one");
}

TEST(FlightRecorder, PhasesOfTheHostFollowOneAnother) {
  FlightRecorder recorder;
  recorder.begin_phase(HostPhase::kReads, 0, 4);
  recorder.begin_phase(HostPhase::kIssues, 0, 4);
  const auto records = recorder.host().records();
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].end, records[1].begin);
  EXPECT_FALSE(records[1].end);
  EXPECT_EQ(records[1].action, static_cast<int>(HostPhase::kIssues));
}

}  // namespace
}  // namespace tessera::flight_recorder_test
