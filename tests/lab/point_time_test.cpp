#include "point_time.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(BatchTime, IsDisturbedIfAThreadLosesItsCore) {
  EXPECT_FALSE((BatchTime{.seconds = 0.006}.is_disturbed()));
  EXPECT_FALSE((BatchTime{.seconds = 0.006, .running = 0.006}.is_disturbed()));
  EXPECT_TRUE((BatchTime{.seconds = 0.006, .running = 0.003}.is_disturbed()));
  EXPECT_FALSE((BatchTime{.seconds = 1.0, .running = 0.99, .preemptions = 300.0}.is_disturbed()))
      << "threads of the kernel run for microseconds, some hundred times a second";
  EXPECT_FALSE((BatchTime{.seconds = 0.006, .preemptions = 1.0}.is_disturbed()));
  EXPECT_TRUE((BatchTime{.seconds = 0.006, .preemptions = 4.0}.is_disturbed()));
  EXPECT_FALSE((BatchTime{.seconds = 1.0, .preemptions = 100.0}.is_disturbed()));
  EXPECT_TRUE((BatchTime{.seconds = 1.0, .preemptions = 300.0}.is_disturbed()));
}

TEST(PointTime, IsThatOfTheFastestBatch) {
  const PointTime time =
      summarize({{.seconds = 1.02}, {.seconds = 1.0}, {.seconds = 1.01}, {.seconds = 1.01}}, 10);
  EXPECT_DOUBLE_EQ(time.seconds, 0.1);
  EXPECT_LT(time.spread, 0.02);
  EXPECT_FALSE(time.disturbed);
}

TEST(PointTime, IsDisturbedIfNoBatchIsUndisturbed) {
  const BatchTime lost{.seconds = 1.0, .running = 0.5}, kept{.seconds = 1.0, .running = 1.0};
  EXPECT_TRUE(summarize({lost, lost, lost}, 1).disturbed);
  EXPECT_FALSE(summarize({lost, lost, kept}, 1).disturbed);
}

TEST(PointTime, IsDisturbedIfBatchesAreFarApart) {
  const PointTime time = summarize(
      {{.seconds = 1.0}, {.seconds = 1.1}, {.seconds = 1.5}, {.seconds = 2.0}, {.seconds = 2.0}},
      1);
  EXPECT_NEAR(time.spread, 0.9 / 1.5, 1e-12);
  EXPECT_TRUE(time.disturbed);
}

TEST(PointTime, OfTwoMeasurementsTheUndisturbedOneCounts) {
  const PointTime quiet{.seconds = 1.0, .spread = 0.01}, busy{.seconds = 2.0, .disturbed = true};
  EXPECT_EQ(PointTime::better(busy, quiet).seconds, 1.0);
  EXPECT_FALSE(PointTime::better(busy, quiet).disturbed);
  const PointTime both = PointTime::better({.seconds = 3.0, .disturbed = true}, busy);
  EXPECT_EQ(both.seconds, 2.0);
  EXPECT_TRUE(both.disturbed);
}

/// Calls of so many seconds; counts them.
struct Calls {
  double seconds = 0.0;
  int count = 0, batches = 0;
  PointTime time(double wanted) {
    return time_point(wanted, [this](int calls) {
      count += calls;
      ++batches;
      return BatchTime{.seconds = seconds * calls};
    });
  }
};

TEST(PointTime, ShortCallsAreTimedInFiveBatches) {
  Calls calls{.seconds = 1e-4};
  EXPECT_NEAR(calls.time(0.03).seconds, 1e-4, 1e-12);
  EXPECT_EQ(calls.batches, 2 + 5);
  EXPECT_NEAR(calls.count, 300, 7);
}

TEST(PointTime, CallsOfSeveralMillisecondsAreTimedOneByOne) {
  Calls calls{.seconds = 0.02};
  EXPECT_NEAR(calls.time(0.03).seconds, 0.02, 1e-12);
  EXPECT_EQ(calls.count, 1 + 5);
}

TEST(PointTime, LongCallsAreTimedTwice) {
  Calls calls{.seconds = 2.0};
  EXPECT_NEAR(calls.time(0.03).seconds, 2.0, 1e-12);
  EXPECT_EQ(calls.count, 1 + 2);
}

TEST(CalibrationTime, IsSharedByThePointsThatAreLeft) {
  using calibration_time::of_point;
  EXPECT_EQ(of_point(180.0, 100, 0.03), 0.03) << "not more than wanted";
  EXPECT_NEAR(of_point(100.0, 5000, 0.03), 0.7 * 0.02, 1e-12);
  EXPECT_NEAR(of_point(-1.0, 100, 0.03), 0.006, 1e-12) << "a fifth at least";
  EXPECT_EQ(of_point(10.0, 0, 0.03), 0.03);
}

TEST(CalibrationTime, SufficesForTenShares) {
  using calibration_time::suffices;
  EXPECT_TRUE(suffices(100.0, 1000, 0.3));
  EXPECT_FALSE(suffices(100.0, 1000, 0.4)) << "three calls are more than ten times 0.1 s";
  EXPECT_FALSE(suffices(0.0, 1000, 0.0));
  EXPECT_TRUE(calibration_time::suffices_again(1.0, 0.3));
  EXPECT_FALSE(calibration_time::suffices_again(1.0, 0.4));
}

}  // namespace
}  // namespace tessera
