#include <gtest/gtest.h>

#include <algorithm>

#include "collectives/neighbours.h"
#include "collectives/ranks.h"

// Subgroups, concurrency of groups, and stress under random delays.
namespace tessera {
namespace {

using test::enqueue;
using test::expect_success;
using test::Groups;
using test::kWorldSizes;
using test::make_groups;
using test::random_delays;
using test::RankContext;
using test::Vector;
using test::view_of;

Vector<std::int64_t> gathered_ranks(ProcessGroup& group, std::int64_t own, Stream& stream) {
  Vector<std::int64_t> input{own};
  Vector<std::int64_t> output(static_cast<std::size_t>(group.size()));
  group.all_gather(view_of(input), view_of(output), stream);
  stream.synchronize();
  return output;
}

TEST(SplitTest, OddAndEvenRanks) {
  for (int size : kWorldSizes) {
    Groups groups = make_groups(size);
    expect_success(groups, [&](RankContext c) {
      const auto half = c.group.split(c.rank() % 2, 0);
      Vector<std::int64_t> expected;
      for (int r = c.rank() % 2; r < size; r += 2) expected.push_back(r);
      EXPECT_EQ(half->rank(), c.rank() / 2);
      EXPECT_EQ(gathered_ranks(*half, c.rank(), c.stream), expected);
      c.group.barrier(c.stream);
      c.stream.synchronize();
    });
  }
}

TEST(SplitTest, KeysReverseTheOrder) {
  for (int size : kWorldSizes) {
    Groups groups = make_groups(size);
    expect_success(groups, [&](RankContext c) {
      const auto reversed = c.group.split(5, -c.rank());
      EXPECT_EQ(reversed->rank(), size - 1 - c.rank());
      Vector<std::int64_t> expected;
      for (int r = size - 1; r >= 0; --r) expected.push_back(r);
      EXPECT_EQ(gathered_ranks(*reversed, c.rank(), c.stream), expected);
      // A split of a split, with one rank each.
      const auto alone = reversed->split(c.rank(), 0);
      EXPECT_EQ(alone->size(), 1);
      EXPECT_EQ(gathered_ranks(*alone, c.rank(), c.stream), Vector<std::int64_t>{c.rank()});
    });
  }
}

TEST(SplitTest, PairsOfNeighboursExchangeInBothDirectionsAtOnce) {
  for (int size : {2, 3, 4, 7}) {
    Groups groups = make_groups(size);
    test::exchange_between_neighbours(groups);
  }
}

TEST(SplitTest, TrafficIsPerGroup) {
  Groups groups = make_groups(2);
  expect_success(groups, [](RankContext c) {
    const auto other = c.group.split(0, c.rank());
    gathered_ranks(*other, 0, c.stream);
    EXPECT_EQ(other->traffic().sent_of(CollectiveKind::kAllGather), 8);
    EXPECT_EQ(c.group.traffic(), Traffic{});
  });
}

TEST(StressTest, TwoGroupsOnTwoStreamsUnderRandomDelays) {
  for (int size : kWorldSizes) {
    Groups groups = make_groups(size);
    expect_success(
        groups,
        [&](RankContext c) {
          const auto second = c.group.split(0, c.rank());
          constexpr int kRounds = 60;
          std::vector<Vector<float>> a(kRounds, Vector<float>(37));
          std::vector<Vector<float>> b(kRounds, Vector<float>(53));
          for (std::size_t i = 0; i < kRounds; ++i) {
            std::fill(a[i].begin(), a[i].end(), static_cast<float>(c.rank() + 1));
            std::fill(b[i].begin(), b[i].end(), static_cast<float>(i));
            c.group.all_reduce(view_of(a[i]), c.stream);
            second->all_reduce(view_of(b[i]), c.second_stream);
          }
          c.stream.synchronize();
          c.second_stream.synchronize();
          for (std::size_t i = 0; i < kRounds; ++i) {
            EXPECT_EQ(a[i], Vector<float>(37, static_cast<float>(size * (size + 1)) / 2));
            EXPECT_EQ(b[i], Vector<float>(53, static_cast<float>(i) * static_cast<float>(size)));
          }
        },
        random_delays);
  }
}

TEST(StressTest, OneGroupOnTwoLanesStaysInOrder) {
  Groups groups = make_groups(4);
  expect_success(
      groups,
      [](RankContext c) {
        Vector<std::int64_t> outputs(4 * 100);
        Vector<std::int64_t> inputs(100);
        for (std::int64_t i = 0; i < 100; ++i) {
          inputs[static_cast<std::size_t>(i)] = i * 10 + c.rank();
          // Which lane runs which operation differs from rank to rank.
          Stream& stream = (i + c.rank()) % 3 == 0 ? c.stream : c.second_stream;
          c.group.all_gather(view_of(inputs).narrow(0, i, 1), view_of(outputs).narrow(0, i * 4, 4),
                             stream);
        }
        c.stream.synchronize();
        c.second_stream.synchronize();
        for (std::int64_t i = 0; i < 400; ++i) {
          EXPECT_EQ(outputs[static_cast<std::size_t>(i)], i / 4 * 10 + i % 4);
        }
      },
      random_delays);
}

TEST(StressTest, ManySmallOperationsOfEveryKind) {
  for (int size : {2, 4, 7}) {
    Groups groups = make_groups(size);
    expect_success(groups, [&](RankContext c) {
      const auto n = static_cast<std::size_t>(size);
      Vector<float> part{1.0F};
      Vector<float> whole(n);
      Vector<float> swapped(n);
      for (int i = 0; i < 100; ++i) {
        c.group.all_gather(view_of(part), view_of(whole), c.stream);     // whole = part of all
        c.group.all_to_all(view_of(whole), view_of(swapped), c.stream);  // the same again
        c.group.reduce_scatter(view_of(swapped), view_of(part), false, c.stream);  // * size
        c.group.broadcast(view_of(part), i % size, c.stream);
        enqueue(c.stream, [&] { part[0] /= static_cast<float>(size); });
        if (i % 10 == 0) c.group.barrier(c.stream);
      }
      c.stream.synchronize();
      EXPECT_NEAR(part[0], 1.0F, 1e-3F);
      // Same operations, same order: every rank has the same bits.
      c.group.all_gather(view_of(part), view_of(whole), c.stream);
      c.stream.synchronize();
      EXPECT_EQ(std::count(whole.begin(), whole.end(), part[0]), size);
    });
  }
}

// A buffer belongs to its rank again as soon as the stream has passed the operation.
TEST(StressTest, BuffersMayBeOverwrittenRightAfterwards) {
  Groups groups = make_groups(4);
  expect_success(
      groups,
      [](RankContext c) {
        Vector<float> part(1000);
        Vector<float> whole(4000);
        for (int i = 0; i < 50; ++i) {
          enqueue(c.stream, [&, i] {
            std::fill(part.begin(), part.end(), static_cast<float>(i * 4 + c.rank()));
          });
          c.group.all_gather(view_of(part), view_of(whole), c.stream);
          enqueue(c.stream, [&, i] {
            for (std::size_t k = 0; k < 4000; ++k) {
              ASSERT_EQ(whole[k], static_cast<float>(i * 4 + static_cast<int>(k / 1000)));
            }
          });
          c.group.all_reduce(view_of(whole), c.stream);
        }
        c.stream.synchronize();
      },
      random_delays);
}

}  // namespace
}  // namespace tessera
