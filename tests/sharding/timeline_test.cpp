#include "tessera/sharding/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tessera {
namespace {

ActionSpan compute(double begin, double end) { return {0, Lane::kCompute, begin, end}; }
ActionSpan gather(double begin, double end) { return {0, Lane::kGather, begin, end}; }
ActionSpan reduce(double begin, double end) { return {0, Lane::kReduce, begin, end}; }

void expect_summary(const std::vector<ActionSpan>& spans, const TimelineSummary& expected) {
  const TimelineSummary summary = summarize(spans);
  EXPECT_EQ(summary.step_seconds, expected.step_seconds);
  EXPECT_EQ(summary.compute_seconds, expected.compute_seconds);
  EXPECT_EQ(summary.communication_seconds, expected.communication_seconds);
  EXPECT_EQ(summary.exposed_seconds, expected.exposed_seconds);
}

TEST(Timeline, OfNothingIsZero) { expect_summary({}, {}); }

TEST(Timeline, ComputationAloneExposesNothing) {
  expect_summary({compute(5, 6), compute(8, 10)}, {5, 3, 0, 0});
}

TEST(Timeline, CommunicationAloneIsExposed) {
  expect_summary({gather(5, 6), reduce(8, 10)}, {5, 0, 3, 3});
}

TEST(Timeline, HiddenCommunicationIsNotExposed) {
  expect_summary({compute(0, 10), gather(2, 4), reduce(3, 9)}, {10, 10, 7, 0});
}

TEST(Timeline, WhatSticksOutIsExposed) {
  // Before, between and after two stretches of computation, over one of which it reaches.
  expect_summary({gather(0, 3), compute(2, 4), compute(6, 8), reduce(3, 9)}, {9, 4, 9, 5});
}

TEST(Timeline, OverlappingLanesCountOnce) {
  expect_summary({gather(0, 4), reduce(2, 6), compute(5, 7)}, {7, 2, 6, 5});
}

TEST(Timeline, OrderOfSpansAndEmptySpansDoNotMatter) {
  expect_summary({reduce(2, 6), compute(3, 3), gather(0, 4), compute(5, 7), gather(9, 9)},
                 {9, 2, 6, 5});
}

TEST(Timeline, HiddenTimeIsExactlyZeroInSpiteOfRounding) {
  std::vector<ActionSpan> spans;
  for (int i = 0; i < 1000; ++i) {
    spans.push_back(compute(0.1 * i, 0.1 * (i + 1)));
    spans.push_back(gather(0.1 * i, 0.1 * (i + 1)));
  }
  EXPECT_EQ(summarize(spans).exposed_seconds, 0.0);
}

// Against counting unit ticks.
TEST(Timeline, AgreesWithTicksOnRandomSpans) {
  std::mt19937 random(7);
  constexpr int kTicks = 60;
  std::uniform_int_distribution<int> tick(0, kTicks);
  std::uniform_int_distribution<int> lane(0, kLanes - 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<ActionSpan> spans;
    std::vector<bool> computes(kTicks, false);
    std::vector<bool> communicates(kTicks, false);
    int first = kTicks;
    int last = 0;
    for (int i = 0; i <= round % 17; ++i) {
      const auto [begin, end] = std::minmax({tick(random), tick(random)});
      const Lane on = kAllLanes[static_cast<std::size_t>(lane(random))];
      spans.push_back({i, on, static_cast<double>(begin), static_cast<double>(end)});
      auto& busy = is_communication(on) ? communicates : computes;
      for (int t = begin; t < end && !is_copying(on); ++t) {
        busy[static_cast<std::size_t>(t)] = true;
      }
      first = std::min(first, begin);
      last = std::max(last, end);
    }
    TimelineSummary expected{.step_seconds = static_cast<double>(last - first)};
    for (std::size_t t = 0; t < kTicks; ++t) {
      expected.compute_seconds += computes[t] ? 1 : 0;
      expected.communication_seconds += communicates[t] ? 1 : 0;
      expected.exposed_seconds += communicates[t] && !computes[t] ? 1 : 0;
    }
    expect_summary(spans, expected);
  }
}

}  // namespace
}  // namespace tessera
