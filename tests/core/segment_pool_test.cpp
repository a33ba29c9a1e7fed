#include "tessera/core/segment_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <vector>

namespace tessera {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Segments one above the other, or each below the one before.
SegmentPool::Grow segments(bool upwards) {
  return [upwards, next = SegmentPool::Address{1} << 40](std::size_t wanted, std::size_t) mutable {
    if (!upwards) next -= wanted;
    const SegmentPool::Segment segment{.address = next, .bytes = wanted};
    if (upwards) next += wanted;
    return segment;
  };
}

TEST(SegmentPool, SmallRequestsShareSegmentsAndLargeOnesHaveTheirOwn) {
  SegmentPool pool(segments(true));
  const auto a = pool.allocate(1);
  EXPECT_EQ(pool.allocate(513), a + 512);
  EXPECT_EQ(pool.allocate(1), a + 512 + 1024);
  EXPECT_EQ(pool.reserved_bytes(), 32 * kMiB);
  pool.allocate(40 * kMiB - 1);
  EXPECT_EQ(pool.reserved_bytes(), 72 * kMiB);
  EXPECT_EQ(pool.segments(), 2);
}

TEST(SegmentPool, TheSmallestBlockThatFitsServes) {
  SegmentPool pool(segments(true));
  const auto large = pool.allocate(60 * kMiB);
  const auto small = pool.allocate(50 * kMiB);
  pool.deallocate(large);
  pool.deallocate(small);
  EXPECT_EQ(pool.allocate(45 * kMiB), small);
  EXPECT_EQ(pool.allocate(45 * kMiB), large);
}

TEST(SegmentPool, NeighboursMergeWithinASegmentOnly) {
  SegmentPool pool(segments(true));
  std::vector<SegmentPool::Address> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(8 * kMiB));
  EXPECT_EQ(pool.segments(), 2);
  for (const int i : {1, 3, 2, 0, 5, 4, 7, 6}) pool.deallocate(blocks[static_cast<unsigned>(i)]);
  EXPECT_EQ(pool.allocate(32 * kMiB), blocks[0]);
  EXPECT_EQ(pool.allocate(32 * kMiB), blocks[4]);
  pool.deallocate(blocks[0]);
  pool.deallocate(blocks[4]);
  pool.allocate(33 * kMiB);  // the two are neighbours, and stay apart
  EXPECT_EQ(pool.segments(), 3);
}

TEST(SegmentPool, WhereSegmentsLieDoesNotMatter) {
  SegmentPool up(segments(true)), down(segments(false));
  std::mt19937 generator(3);
  std::vector<std::pair<SegmentPool::Address, SegmentPool::Address>> live;
  for (int i = 0; i < 3000; ++i) {
    if (generator() % 2 == 0 || live.empty()) {
      const std::size_t bytes = std::size_t{1} << (generator() % 27);
      live.emplace_back(up.allocate(bytes), down.allocate(bytes));
    } else {
      std::swap(live[generator() % live.size()], live.back());
      up.deallocate(live.back().first);
      down.deallocate(live.back().second);
      live.pop_back();
    }
    ASSERT_EQ(up.reserved_bytes(), down.reserved_bytes()) << i;
  }
  EXPECT_GT(up.segments(), 5);
}

TEST(SegmentPool, GoesOnAfterASegmentThatWasRefused) {
  bool refuse = true;
  SegmentPool pool([&](std::size_t, std::size_t needed) -> SegmentPool::Segment {
    if (refuse) throw std::runtime_error("nothing left");
    return {.address = 512, .bytes = needed};
  });
  EXPECT_THROW(pool.allocate(100), std::runtime_error);
  EXPECT_EQ(pool.reserved_bytes(), 0);
  refuse = false;
  EXPECT_EQ(pool.allocate(100), 512U);
  EXPECT_EQ(pool.reserved_bytes(), 2 * kMiB);
}

}  // namespace
}  // namespace tessera
