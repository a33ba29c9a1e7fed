#include "tessera/sharding/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/error.h"

namespace tessera::learning_rate_test {
namespace {

using Kind = LearningRateSchedule::Kind;
using ::testing::HasSubstr;

constexpr LearningRateSchedule schedule_of(Kind kind) {
  return {.kind = kind,
          .peak = 1.0,
          .minimum = 0.25,
          .warmup_steps = 4,
          .total_steps = 12,
          .decay_steps = 4};
}

TEST(LearningRate, WarmsUpInAStraightLineToThePeak) {
  for (const Kind kind : {Kind::kConstant, Kind::kLinear, Kind::kCosine, Kind::kWsd}) {
    const LearningRateSchedule s = schedule_of(kind);
    EXPECT_EQ(s.at(0), 0.25);
    EXPECT_EQ(s.at(1), 0.5);
    EXPECT_EQ(s.at(2), 0.75);
    EXPECT_EQ(s.at(3), 1.0);
    EXPECT_EQ(s.at(4), 1.0);
  }
}

TEST(LearningRate, StartsAtThePeakWithoutWarmUp) {
  for (const Kind kind : {Kind::kConstant, Kind::kLinear, Kind::kCosine, Kind::kWsd}) {
    LearningRateSchedule s = schedule_of(kind);
    s.warmup_steps = 0;
    EXPECT_EQ(s.at(0), 1.0);
  }
}

TEST(LearningRate, ConstantStaysAtThePeak) {
  const LearningRateSchedule s = schedule_of(Kind::kConstant);
  EXPECT_EQ(s.at(11), 1.0);
  EXPECT_EQ(s.at(1000), 1.0);
}

TEST(LearningRate, LinearFallsEvenly) {
  const LearningRateSchedule s = schedule_of(Kind::kLinear);
  EXPECT_EQ(s.at(8), 0.625);  // halfway
  EXPECT_EQ(s.at(10), 1 - 0.75 * 0.75);
  EXPECT_EQ(s.at(12), 0.25);
  EXPECT_EQ(s.at(1000), 0.25);
}

TEST(LearningRate, CosineFallsAlongHalfAPeriod) {
  const LearningRateSchedule s = schedule_of(Kind::kCosine);
  EXPECT_NEAR(s.at(6), 0.25 + 0.75 * 0.5 * (1 + std::sqrt(0.5)), 1e-15);  // a quarter of the way
  EXPECT_NEAR(s.at(8), 0.625, 1e-15);
  EXPECT_NEAR(s.at(10), 0.25 + 0.75 * 0.5 * (1 - std::sqrt(0.5)), 1e-15);
  EXPECT_EQ(s.at(12), 0.25);
  EXPECT_EQ(s.at(1000), 0.25);
  for (std::int64_t step = 4; step < 12; ++step) EXPECT_GT(s.at(step), s.at(step + 1));
}

TEST(LearningRate, WsdIsStableUntilItDecays) {
  const LearningRateSchedule s = schedule_of(Kind::kWsd);
  EXPECT_EQ(s.at(7), 1.0);
  EXPECT_EQ(s.at(8), 1.0);
  EXPECT_EQ(s.at(9), 1 - 0.75 * 0.25);
  EXPECT_EQ(s.at(10), 0.625);
  EXPECT_EQ(s.at(12), 0.25);
  EXPECT_EQ(s.at(1000), 0.25);
}

TEST(LearningRate, WsdWithoutDecayIsConstant) {
  LearningRateSchedule s = schedule_of(Kind::kWsd);
  s.decay_steps = 0;
  EXPECT_EQ(s.at(11), 1.0);
  EXPECT_EQ(s.at(1000), 1.0);
}

TEST(LearningRate, WarmUpMayTakeTheWholeRun) {
  LearningRateSchedule s = schedule_of(Kind::kCosine);
  s.warmup_steps = 12;
  EXPECT_EQ(s.at(11), 1.0);
  EXPECT_EQ(s.at(12), 0.25);
}

TEST(LearningRate, NamesReadBack) {
  for (const Kind kind : {Kind::kConstant, Kind::kLinear, Kind::kCosine, Kind::kWsd}) {
    EXPECT_EQ(parse_learning_rate_kind(to_string(kind)), kind);
  }
  try {
    parse_learning_rate_kind("cosin");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("'cosin'"));
    EXPECT_THAT(error.what(), HasSubstr("constant, linear, cosine or wsd"));
  }
}

TEST(LearningRate, CheckRejectsContradictions) {
  using Change = std::function<void(LearningRateSchedule&)>;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_NO_THROW(check(schedule_of(Kind::kWsd)));
  EXPECT_NO_THROW(check(LearningRateSchedule{}));
  const std::vector<std::pair<Change, std::string>> cases{
      {[](auto& s) { s.peak = -1; }, "peak learning rate of -1"},
      {[=](auto& s) { s.peak = nan; }, "peak learning rate of nan"},
      {[=](auto& s) { s.peak = infinity; }, "peak learning rate of inf"},
      {[](auto& s) { s.minimum = -1; }, "minimum learning rate of -1"},
      {[=](auto& s) { s.minimum = nan; }, "minimum learning rate of nan"},
      {[](auto& s) { s.minimum = 2; }, "minimum learning rate 2 is above the peak 1"},
      {[](auto& s) { s.total_steps = 0; }, "0 steps needs at least one"},
      {[](auto& s) { s.warmup_steps = -1; }, "-1 warm-up steps"},
      {[](auto& s) { s.warmup_steps = 13; }, "13 warm-up steps do not fit into 12 steps"},
      {[](auto& s) { s.decay_steps = -1; }, "-1 decay steps"},
      {[](auto& s) { s.decay_steps = 9; },
       "9 decay steps do not fit between 4 warm-up steps and step 12; decay over fewer"},
  };
  for (const auto& [change, says] : cases) {
    LearningRateSchedule s = schedule_of(Kind::kWsd);
    change(s);
    try {
      check(s);
      ADD_FAILURE() << "nothing was thrown for: " << says;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  }
}

}  // namespace
}  // namespace tessera::learning_rate_test
