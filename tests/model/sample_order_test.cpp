#include "tessera/model/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {
namespace {

std::vector<std::int64_t> epoch_of(const SampleOrder& order, std::int64_t epoch) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < order.samples(); ++i) indices.push_back(order.index(epoch, i));
  return indices;
}

TEST(SampleOrder, IsAPermutationForEverySize) {
  std::vector<std::int64_t> sizes(70);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (std::int64_t large : {255, 256, 257, 1021, 1024, 1025, 4096, 10007, 65537}) {
    sizes.push_back(large);
  }
  for (const std::int64_t size : sizes) {
    for (const std::int64_t epoch : {0, 1, 12345}) {
      std::vector<std::int64_t> sorted = epoch_of(SampleOrder(size, 7), epoch);
      std::sort(sorted.begin(), sorted.end());
      for (std::int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(sorted[static_cast<std::size_t>(i)], i) << "size " << size << " epoch " << epoch;
      }
    }
  }
}

// These values are in every checkpoint's future: a resumed run must see what it would have seen.
TEST(SampleOrder, NeverChanges) {
  using Order = std::vector<std::int64_t>;
  EXPECT_EQ(epoch_of(SampleOrder(10, 0), 0), (Order{8, 4, 2, 0, 9, 3, 7, 6, 5, 1}));
  EXPECT_EQ(epoch_of(SampleOrder(10, 0), 1), (Order{0, 7, 4, 6, 3, 8, 2, 5, 1, 9}));
  EXPECT_EQ(epoch_of(SampleOrder(10, 1), 0), (Order{1, 8, 4, 0, 9, 2, 3, 5, 7, 6}));
  const SampleOrder large(1000003, 42);
  const Order expected{60052,  92037,  274684, 173487, 276070,
                       248922, 269623, 722342, 460412, 938166};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(large.index(7, static_cast<std::int64_t>(i)), expected[i]);
  }
}

TEST(SampleOrder, DiffersByEpochAndSeed) {
  const auto base = epoch_of(SampleOrder(1000, 1), 0);
  EXPECT_EQ(base, epoch_of(SampleOrder(1000, 1), 0));
  EXPECT_NE(base, epoch_of(SampleOrder(1000, 1), 1));
  EXPECT_NE(base, epoch_of(SampleOrder(1000, 2), 0));
  // Not one epoch of seed 1 is the first of seed 2: seeds are no offsets into one sequence.
  const auto other = epoch_of(SampleOrder(1000, 2), 0);
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    EXPECT_NE(other, epoch_of(SampleOrder(1000, 1), epoch));
  }
}

TEST(SampleOrder, EverySampleIsAsLikelyAtEveryPosition) {
  constexpr std::int64_t kSamples = 5;
  constexpr std::int64_t kEpochs = 100000;
  const SampleOrder order(kSamples, 3);
  double chi_squared = 0.0;
  for (std::int64_t position = 0; position < kSamples; ++position) {
    std::vector<std::int64_t> counts(kSamples);
    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      ++counts[static_cast<std::size_t>(order.index(epoch, position))];
    }
    const double expected = static_cast<double>(kEpochs) / kSamples;
    for (const std::int64_t count : counts) {
      chi_squared += std::pow(static_cast<double>(count) - expected, 2) / expected;
    }
  }
  // 16 degrees of freedom: exceeded by chance once in a thousand seeds, and the seed is fixed.
  EXPECT_LT(chi_squared, 39.25);
}

TEST(SampleOrder, MixesNeighboursApart) {
  constexpr std::int64_t kSamples = 100003;
  const SampleOrder order(kSamples, 11);
  std::int64_t neighbours = 0;
  double distance = 0.0;
  for (std::int64_t i = 1; i < kSamples; ++i) {
    const std::int64_t step = std::abs(order.index(0, i) - order.index(0, i - 1));
    neighbours += step == 1 ? 1 : 0;
    distance += static_cast<double>(step) / kSamples;
  }
  EXPECT_LT(neighbours, 15);  // about 2 expected, Poisson
  // The mean distance of two independent uniform numbers is 1/3; its deviation here about 0.001.
  EXPECT_NEAR(distance / (kSamples - 1), 1.0 / 3.0, 0.005);
}

TEST(SampleOrder, RejectsWhatIsNotThere) {
  EXPECT_THROW(SampleOrder(0, 1), Error);
  EXPECT_THROW(SampleOrder(-1, 1), Error);
  const SampleOrder order(3, 1);
  EXPECT_THROW(order.index(0, 3), Error);
  EXPECT_THROW(order.index(0, -1), Error);
  EXPECT_THROW(order.index(-1, 0), Error);
}

TEST(SampleOrder, WorksAtTheLargestSize) {
  const std::int64_t largest = std::int64_t{1} << 62;
  const SampleOrder order(largest, 1);
  for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1}, largest - 1}) {
    EXPECT_GE(order.index(0, position), 0);
    EXPECT_LT(order.index(0, position), largest);
  }
  EXPECT_THROW(SampleOrder(largest + 1, 1), Error);
}

}  // namespace
}  // namespace tessera
