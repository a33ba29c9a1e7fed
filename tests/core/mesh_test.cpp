#include "tessera/core/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr AxisSet kNone{};
constexpr AxisSet kShard{Axis::kShard};
constexpr AxisSet kReplicate{Axis::kReplicate};
constexpr AxisSet kBoth{Axis::kReplicate, Axis::kShard};

TEST(AxisSetTest, TextRoundTrips) {
  EXPECT_EQ(to_string(kBoth), "replicate+shard");
  for (AxisSet axes : {kNone, kShard, kReplicate, kBoth}) {
    EXPECT_EQ(parse_axes(to_string(axes)), axes);
  }
  EXPECT_EQ(parse_axes("shard+replicate"), kBoth);
  for (const char* wrong : {"", "shards", "shard+", "+shard", "shard+shard", "none+shard"}) {
    EXPECT_THROW(parse_axes(wrong), Error) << wrong;
  }
}

TEST(AxisSetTest, IsASet) {
  EXPECT_TRUE(kBoth.contains(kShard));
  EXPECT_FALSE(kShard.contains(kBoth));
  EXPECT_TRUE(kShard.contains(kNone));
  EXPECT_EQ(kShard | kReplicate, kBoth);
  EXPECT_EQ(kBoth - kShard, kReplicate);
  EXPECT_TRUE((kShard - kBoth).empty());
}

TEST(MeshTest, GroupsAreRowsAndColumns) {
  const Mesh mesh{.replicate = 2, .shard = 3};
  EXPECT_EQ(mesh.world_size(), 6);
  EXPECT_EQ(mesh.size(kBoth), 6);
  EXPECT_EQ(mesh.size(kNone), 1);
  EXPECT_EQ(mesh.index(Axis::kReplicate, 4), 1);
  EXPECT_EQ(mesh.index(Axis::kShard, 4), 1);
  EXPECT_EQ(mesh.group(kShard, 4), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(mesh.group(kReplicate, 4), (std::vector<int>{1, 4}));
  EXPECT_EQ(mesh.group(kBoth, 4), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(mesh.group(kNone, 4), (std::vector<int>{4}));
  EXPECT_THROW(mesh.group(kShard, 6), Error);
}

TEST(MeshTest, EveryRankIsInItsGroups) {
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{1, 7}, Mesh{7, 1}, Mesh{3, 4}}) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      for (AxisSet axes : {kNone, kShard, kReplicate, kBoth}) {
        const std::vector<int> group = mesh.group(axes, rank);
        EXPECT_EQ(static_cast<int>(group.size()), mesh.size(axes));
        EXPECT_TRUE(std::find(group.begin(), group.end(), rank) != group.end());
        EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      }
    }
  }
}

}  // namespace
}  // namespace tessera
