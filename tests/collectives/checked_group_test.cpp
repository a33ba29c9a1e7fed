#include "tessera/collectives/checked_group.h"

#include <gtest/gtest.h>

#include "collectives/neighbours.h"
#include "collectives/ranks.h"

namespace tessera {
namespace {

using test::expect_success;
using test::Groups;
using test::kWorldSizes;
using test::Outcome;
using test::RankContext;
using test::run_ranks;
using test::Vector;
using test::view_of;

Groups make_checked(int size) {
  Groups groups;
  for (auto& group : test::make_groups(size, std::chrono::milliseconds(5000))) {
    groups.push_back(make_checked_group(std::move(group)));
  }
  return groups;
}

/// Every rank fails, and is told what ranks 0 and 1 issued.
void expect_mismatch(const std::vector<Outcome>& outcomes, const std::string& first,
                     const std::string& second) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, ErrorCode::kInvalidArgument) << outcome.what;
    EXPECT_NE(outcome.what.find("rank 0 issued " + first), std::string::npos) << outcome.what;
    EXPECT_NE(outcome.what.find("rank 1 issued " + second), std::string::npos) << outcome.what;
  }
}

TEST(CheckedGroupTest, PassesOnWhatAgreesAndCountsItOnce) {
  for (int size : kWorldSizes) {
    Groups groups = make_checked(size);
    expect_success(groups, [&](RankContext c) {
      const auto n = static_cast<std::size_t>(size);
      Vector<float> part{static_cast<float>(c.rank())};
      Vector<float> whole(n);
      c.group.all_gather(view_of(part), view_of(whole), c.stream);
      c.group.reduce_scatter(view_of(whole), view_of(part), true, c.stream);
      c.group.broadcast(view_of(whole), size - 1, c.stream);
      c.group.barrier(c.stream);
      c.stream.synchronize();
      EXPECT_EQ(part[0], static_cast<float>(c.rank() + c.rank() * size));
      EXPECT_EQ(whole.back(), static_cast<float>(size - 1));
      EXPECT_EQ(c.group.traffic().calls_of(CollectiveKind::kAllGather), 1);
      EXPECT_EQ(c.group.traffic().sent_of(CollectiveKind::kAllGather), 4 * (size - 1));
      const auto pair = c.group.split(c.rank() / 2, 0);
      if (pair->size() == 2) {
        Vector<float> message{static_cast<float>(pair->rank())};
        if (pair->rank() == 0) {
          pair->send(view_of(message), 1, c.stream);
        } else {
          pair->recv(view_of(message), 0, c.stream);
        }
        c.stream.synchronize();
        EXPECT_EQ(message[0], 0.0F);
      }
    });
  }
}

/// One rank alone, which says that it copies 7 bytes for each all-reduce.
class CopyingGroup : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather(TensorView, TensorView, Stream&) override {}
  void reduce_scatter(TensorView, TensorView, bool, Stream&) override {}
  void all_reduce(TensorView, Stream&) override { traffic_.copied_bytes += 7; }
  void broadcast(TensorView, int, Stream&) override {}
  void all_to_all(TensorView, TensorView, Stream&) override {}
  void send(TensorView, int, Stream&) override {}
  void recv(TensorView, int, Stream&) override {}
  void barrier(Stream&) override {}
  std::unique_ptr<ProcessGroup> split(int, int) override { return nullptr; }
  void abort(std::string_view) noexcept override {}
  Traffic traffic() const override { return traffic_; }

 private:
  Traffic traffic_;
};

TEST(CheckedGroupTest, PassesOnWhatItsGroupCopied) {
  const auto stream = test::device_under_test().create_stream({.name = "s"});
  const auto group = make_checked_group(std::make_unique<CopyingGroup>());
  Vector<float> data(3);
  group->all_reduce(view_of(data), *stream);
  group->all_reduce(view_of(data), *stream);
  stream->synchronize();
  EXPECT_EQ(group->traffic().copied_bytes, 14);
  EXPECT_EQ(group->traffic().calls_of(CollectiveKind::kAllReduce), 2);
}

TEST(CheckedGroupTest, FindsDifferentSizes) {
  Groups groups = make_checked(3);
  expect_mismatch(run_ranks(groups,
                            [](RankContext c) {
                              Vector<float> data(c.rank() == 1 ? 11 : 10);
                              c.group.all_reduce(view_of(data), c.stream);
                              c.stream.synchronize();
                            }),
                  "all_reduce(10 fp32)", "all_reduce(11 fp32)");
}

TEST(CheckedGroupTest, FindsDifferentKinds) {
  Groups groups = make_checked(4);
  expect_mismatch(run_ranks(groups,
                            [](RankContext c) {
                              Vector<double> data(8);
                              if (c.rank() == 1) {
                                c.group.broadcast(view_of(data), 2, c.stream);
                              } else {
                                c.group.all_reduce(view_of(data), c.stream);
                              }
                              c.stream.synchronize();
                            }),
                  "all_reduce(8 fp64)", "broadcast(8 fp64, root 2)");
}

TEST(CheckedGroupTest, FindsDifferentRoots) {
  Groups groups = make_checked(2);
  expect_mismatch(run_ranks(groups,
                            [](RankContext c) {
                              Vector<float> data(8);
                              c.group.broadcast(view_of(data), c.rank(), c.stream);
                              c.stream.synchronize();
                            }),
                  "broadcast(8 fp32, root 0)", "broadcast(8 fp32, root 1)");
}

TEST(CheckedGroupTest, FindsDifferentDtypesAndAccumulation) {
  Groups groups = make_checked(2);
  expect_mismatch(
      run_ranks(groups,
                [](RankContext c) {
                  Vector<bfloat16> input(8);
                  Vector<float> output(4);
                  c.group.reduce_scatter(view_of(input), view_of(output), c.rank() == 1, c.stream);
                  c.stream.synchronize();
                }),
      "reduce_scatter(8 bf16 -> 4 fp32)", "reduce_scatter(8 bf16 -> 4 fp32, accumulate)");
}

TEST(CheckedGroupTest, PairsOfNeighboursExchangeInBothDirectionsAtOnce) {
  for (int size : {2, 4}) {
    Groups groups = make_checked(size);
    test::exchange_between_neighbours(groups);
  }
}

TEST(CheckedGroupTest, FindsAMessageOfAnotherSize) {
  Groups groups = make_checked(2);
  expect_mismatch(run_ranks(groups,
                            [](RankContext c) {
                              Vector<float> data(c.rank() == 0 ? 3 : 4);
                              if (c.rank() == 0) c.group.send(view_of(data), 1, c.stream);
                              if (c.rank() == 1) c.group.recv(view_of(data), 0, c.stream);
                              c.stream.synchronize();
                            }),
                  "send(3 fp32)", "recv(4 fp32)");
}

TEST(CheckedGroupTest, FindsAMessageOfAnotherDtype) {
  Groups groups = make_checked(2);
  expect_mismatch(run_ranks(groups,
                            [](RankContext c) {
                              Vector<float> sent(4);
                              Vector<std::int32_t> received(4);  // as many bytes
                              if (c.rank() == 1) c.group.send(view_of(sent), 0, c.stream);
                              if (c.rank() == 0) c.group.recv(view_of(received), 1, c.stream);
                              c.stream.synchronize();
                            }),
                  "recv(4 int32)", "send(4 fp32)");
}

}  // namespace
}  // namespace tessera
