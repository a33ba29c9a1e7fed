#include "tessera/core/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "support/grid.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using test::every_axis_set;
using test::grid;

constexpr AxisSet kNone{};
constexpr AxisSet kShard{Axis::kShard};
constexpr AxisSet kReplicate{Axis::kReplicate};
constexpr AxisSet kBoth{Axis::kReplicate, Axis::kShard};

TEST(AxisSetTest, TextRoundTrips) {
  EXPECT_EQ(to_string(kBoth), "replicate+shard");
  for (const AxisSet axes : every_axis_set()) {
    EXPECT_EQ(parse_axes(to_string(axes)), axes);
  }
  EXPECT_EQ(parse_axes("shard+replicate"), kBoth);
  for (const char* wrong : {"", "shards", "shard+", "+shard", "shard+shard", "none+shard"}) {
    EXPECT_THROW(parse_axes(wrong), Error) << wrong;
  }
}

TEST(AxisSetTest, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  try {
    parse_axes("tensors");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(axis_choices()), text.npos) << text;
    for (const AxisRow& row : kAxisTable) {
      if (!row.may_shard_state) continue;
      EXPECT_NE(text.find(row.name), text.npos) << text;
    }
  }
}

TEST(AxisSetTest, IsASet) {
  EXPECT_TRUE(kBoth.contains(kShard));
  EXPECT_FALSE(kShard.contains(kBoth));
  EXPECT_TRUE(kShard.contains(kNone));
  EXPECT_EQ(kShard | kReplicate, kBoth);
  EXPECT_EQ(kBoth & kShard, kShard);
  EXPECT_TRUE((kShard & kReplicate).empty());
  EXPECT_EQ(kBoth - kShard, kReplicate);
  EXPECT_TRUE((kShard - kBoth).empty());
}

TEST(AxisSetTest, SetsAreNumberedFromZero) {
  std::set<std::size_t> numbers;
  for (const AxisSet axes : every_axis_set()) numbers.insert(axes.number());
  EXPECT_EQ(numbers.size(), kAxisSets);
  EXPECT_EQ(*numbers.rbegin(), kAxisSets - 1);
}

// Samples are divided, and gradients reduced, over replicas and shards alike, and either may cut
// training state.
TEST(AxisTableTest, NamedSetsAreColumns) {
  EXPECT_EQ(kSampleAxes, kBoth);
  EXPECT_EQ(kGradientAxes, kBoth);
  EXPECT_EQ(kStateAxes, kBoth);
}

TEST(MeshTest, GroupsAreRowsAndColumns) {
  const Mesh mesh = grid(2, 3);
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
  EXPECT_THROW(mesh.group(kShard, -1), Error);
}

TEST(MeshTest, AxesThatAreLeftOutHaveOneRank) {
  EXPECT_EQ(Mesh().world_size(), 1);
  EXPECT_EQ((Mesh{{Axis::kShard, 4}}), grid(1, 4));
  EXPECT_EQ((Mesh{{Axis::kShard, 2}, {Axis::kReplicate, 3}}), grid(3, 2));
  EXPECT_EQ(grid(1, 4).axes(), kShard);
  EXPECT_EQ(grid(2, 4).axes(), kBoth);
  EXPECT_EQ(Mesh().axes(), kNone);
}

TEST(MeshTest, TextNamesEveryAxis) {
  EXPECT_EQ(to_string(grid(2, 4)), "replicate 2, shard 4");
  EXPECT_EQ(to_string(Mesh(), " "), "replicate 1 shard 1");
}

TEST(MeshTest, EveryRankIsInItsGroups) {
  for (const Mesh& mesh : {grid(1, 1), grid(1, 7), grid(7, 1), grid(3, 4)}) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      for (const AxisSet axes : every_axis_set()) {
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
