#include "tessera/core/quantile.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

TEST(Quantile, IsInProportionBetweenTwoValues) {
  EXPECT_EQ(quantile({4.0, 1.0, 3.0, 2.0}, 0.0), 1.0);
  EXPECT_EQ(quantile({4.0, 1.0, 3.0, 2.0}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({4.0, 1.0, 3.0, 2.0}, 0.9), 3.7);
  EXPECT_EQ(quantile({}, 0.5), 0.0);
}

TEST(Quantile, InterquartileMeanIsOfTheMiddleHalf) {
  EXPECT_EQ(interquartile_mean({}), 0.0);
  EXPECT_EQ(interquartile_mean({3.0}), 3.0);
  EXPECT_EQ(interquartile_mean({3.0, 4.0}), 3.5);
  EXPECT_EQ(interquartile_mean({9.0, 3.0, 4.0}), 4.0) << "of three their median";
  EXPECT_EQ(interquartile_mean({90.0, 1.0, 4.0, 3.0}), 3.5);
  // A quarter of all that is slower, however much, moves it no further.
  EXPECT_EQ(interquartile_mean({1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0, 80.0}), 4.5);
  for (std::size_t count = 1; count < 40; ++count) {
    const auto [begin, end] = middle_half(count);
    EXPECT_EQ(begin, count - end) << count;
    EXPECT_LT(begin, end) << count;
    EXPECT_NEAR(static_cast<double>(end - begin), 0.5 * static_cast<double>(count), 1.0) << count;
  }
}

}  // namespace
}  // namespace tessera
