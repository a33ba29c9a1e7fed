#include "tessera/core/rank_grid.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

using Numbers = std::vector<std::size_t>;

/// Grids of one dimension to five, of size 1 among them.
const std::vector<std::vector<int>>& grids() {
  static const std::vector<std::vector<int>> all{{5},       {2, 3},       {3, 1},         {2, 3, 2},
                                                 {4, 1, 3}, {2, 2, 3, 2}, {2, 3, 1, 2, 2}};
  return all;
}

// A rank's coordinates, outermost first, are the digits of its number.
TEST(RankGridTest, TheLastDimensionVariesFastest) {
  for (const std::vector<int>& sizes : grids()) {
    std::vector<int> expected(sizes.size(), 0);
    for (int rank = 0; rank < rank_grid::ranks(sizes); ++rank) {
      int numbered = 0;
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        EXPECT_EQ(rank_grid::index(sizes, d, rank), expected[d]) << rank << " along " << d;
        numbered += expected[d] * rank_grid::stride(sizes, d);
      }
      EXPECT_EQ(numbered, rank);
      for (std::size_t d = sizes.size(); d-- > 0 && ++expected[d] == sizes[d];) expected[d] = 0;
    }
    EXPECT_EQ(expected, std::vector<int>(sizes.size(), 0)) << "all ranks have been seen";
  }
}

TEST(RankGridTest, AGroupIsTheRanksThatDifferAlongItsDimensionsOnly) {
  for (const std::vector<int>& sizes : grids()) {
    for (unsigned set = 0; set < 1U << sizes.size(); ++set) {
      Numbers dimensions;
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        if ((set >> d & 1U) != 0) dimensions.push_back(d);
      }
      for (int rank = 0; rank < rank_grid::ranks(sizes); ++rank) {
        std::vector<int> expected;
        for (int other = 0; other < rank_grid::ranks(sizes); ++other) {
          bool same = true;
          for (std::size_t d = 0; d < sizes.size(); ++d) {
            const bool differs =
                rank_grid::index(sizes, d, other) != rank_grid::index(sizes, d, rank);
            same = same && ((set >> d & 1U) != 0 || !differs);
          }
          if (same) expected.push_back(other);
        }
        EXPECT_EQ(rank_grid::group(sizes, dimensions, rank), expected) << rank << " in " << set;
      }
    }
  }
}

TEST(RankGridTest, ASingleRankHasNoDimensions) {
  EXPECT_EQ(rank_grid::ranks({}), 1);
  EXPECT_EQ(rank_grid::group({}, {}, 0), (std::vector<int>{0}));
}

}  // namespace
}  // namespace tessera
