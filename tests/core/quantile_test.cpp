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

TEST(Quantile, UndisturbedIsTheMedianOfTheFastestTenth) {
  std::vector<double> values;
  for (int i = 40; i > 0; --i) values.push_back(i * i);
  EXPECT_EQ(undisturbed(values), 6.5) << "of 1, 4, 9 and 16";
  EXPECT_EQ(undisturbed({5.0, 3.0, 4.0}), 3.0);
  EXPECT_EQ(undisturbed({}), 0.0);
}

}  // namespace
}  // namespace tessera
