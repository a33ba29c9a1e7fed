
#include <gtest/gtest.h>

#include <array>

#include "collectives/ranks.h"
#include "support/extent.h"
#include "tessera/collectives/thread_group.h"

// Every operation over world sizes x sizes x dtypes, bit for bit against a sequential loop.
namespace tessera {
namespace {

using test::describe;
using test::device_under_test;
using test::enqueue;
using test::exact_value;
using test::expect_same_bits;
using test::expect_success;
using test::Groups;
using test::kNumels;
using test::kWorldSizes;
using test::make_groups;
using test::ordered_sum_oracle;
using test::random_value;
using test::RankContext;
using test::testing_nccl;
using test::ValueOf;
using test::values;
using test::Vector;
using test::view_of;

/// Calls check(context, numel) on every rank for every world size and numel.
void for_each_size(const std::function<void(RankContext, std::int64_t)>& check) {
  for (int size : kWorldSizes) {
    Groups groups = make_groups(size);
    for (std::int64_t numel : kNumels) {
      expect_success(groups, [&](RankContext context) { check(context, numel); });
    }
  }
}

template <typename T>
Vector<T> concatenation(int size, std::int64_t numel) {
  Vector<T> result;
  for (int r = 0; r < size; ++r) {
    const Vector<T> part = values<T>(exact_value, r, numel);
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

template <typename T>
class AnyDTypeTest : public ::testing::Test {};
using AnyDTypes =
    ::testing::Types<float, bfloat16, double, std::int32_t, std::int64_t, std::uint8_t>;
TYPED_TEST_SUITE(AnyDTypeTest, AnyDTypes);

TYPED_TEST(AnyDTypeTest, AllGather) {
  for_each_size([](RankContext c, std::int64_t numel) {
    Vector<TypeParam> input = values<TypeParam>(exact_value, c.rank(), numel);
    Vector<TypeParam> output(static_cast<std::size_t>(numel * c.size()));
    c.group.all_gather(view_of(input), view_of(output), c.stream);
    c.stream.synchronize();
    expect_same_bits(output, concatenation<TypeParam>(c.size(), numel),
                     describe(c.size(), numel, c.rank()));
  });
}

TYPED_TEST(AnyDTypeTest, AllGatherInPlace) {
  for_each_size([](RankContext c, std::int64_t numel) {
    Vector<TypeParam> data(static_cast<std::size_t>(numel * c.size()));
    const Vector<TypeParam> own = values<TypeParam>(exact_value, c.rank(), numel);
    std::copy(own.begin(), own.end(), data.begin() + c.rank() * numel);
    c.group.all_gather(view_of(data).narrow(0, c.rank() * numel, numel), view_of(data), c.stream);
    c.stream.synchronize();
    expect_same_bits(data, concatenation<TypeParam>(c.size(), numel),
                     describe(c.size(), numel, c.rank()));
  });
}

TYPED_TEST(AnyDTypeTest, BroadcastFromEveryRoot) {
  for_each_size([](RankContext c, std::int64_t numel) {
    for (int root = 0; root < c.size(); ++root) {
      Vector<TypeParam> data = values<TypeParam>(exact_value, c.rank(), numel);
      c.group.broadcast(view_of(data), root, c.stream);
      c.stream.synchronize();
      expect_same_bits(data, values<TypeParam>(exact_value, root, numel),
                       describe(c.size(), numel, c.rank()));
    }
  });
}

TYPED_TEST(AnyDTypeTest, AllToAll) {
  for_each_size([](RankContext c, std::int64_t numel) {
    Vector<TypeParam> input = values<TypeParam>(exact_value, c.rank(), numel * c.size());
    Vector<TypeParam> output(input.size());
    c.group.all_to_all(view_of(input), view_of(output), c.stream);
    c.stream.synchronize();
    Vector<TypeParam> expected;
    for (int peer = 0; peer < c.size(); ++peer) {
      for (std::int64_t i = 0; i < numel; ++i) {
        expected.push_back(exact_value<TypeParam>(peer, c.rank() * numel + i));
      }
    }
    expect_same_bits(output, expected, describe(c.size(), numel, c.rank()));
  });
}

TYPED_TEST(AnyDTypeTest, SendAndReceiveInARing) {
  for_each_size([](RankContext c, std::int64_t numel) {
    if (c.size() == 1) return;  // nobody to send to
    const int next = (c.rank() + 1) % c.size();
    const int previous = (c.rank() + c.size() - 1) % c.size();
    Vector<TypeParam> input = values<TypeParam>(exact_value, c.rank(), numel);
    Vector<TypeParam> output(input.size());
    // A send waits for its recv, so both directions need a lane; and with NCCL, where a group does
    // one thing at a time, somebody has to begin the ring.
    const bool begins = testing_nccl() && c.rank() == 0;
    if (begins) c.group.recv(view_of(output), previous, c.second_stream);
    c.group.send(view_of(input), next, c.stream);
    if (!begins) c.group.recv(view_of(output), previous, c.second_stream);
    c.stream.synchronize();
    c.second_stream.synchronize();
    expect_same_bits(output, values<TypeParam>(exact_value, previous, numel),
                     describe(c.size(), numel, c.rank()));
  });
}

TEST(SendAndReceiveTest, BothDirectionsOfAPairAtTheSameTime) {
  constexpr int kRounds = 50;
  Groups groups = make_groups(2);
  expect_success(groups, [](RankContext c) {
    const int other = 1 - c.rank();
    const std::array<std::int64_t, 2> numels{1000, 2000};
    for (int round = 0; round < kRounds; ++round) {
      const auto numel = [&](int rank) { return numels[static_cast<std::size_t>(rank)]; };
      Vector<float> input = values<float>(random_value, c.rank() + round, numel(c.rank()));
      Vector<float> output(static_cast<std::size_t>(numel(other)));
      const bool begins = testing_nccl() && c.rank() == 0;  // as in the ring
      if (begins) c.group.recv(view_of(output), other, c.second_stream);
      c.group.send(view_of(input), other, c.stream);
      if (!begins) c.group.recv(view_of(output), other, c.second_stream);
      c.stream.synchronize();
      c.second_stream.synchronize();
      expect_same_bits(output, values<float>(random_value, other + round, numel(other)),
                       "received");
    }
  });
}

TEST(SendAndReceiveTest, SendsToOnePeerFromTwoStreamsKeepTheirOrder) {
  constexpr int kRounds = 50;
  if (testing_nccl()) GTEST_SKIP() << "a group of NCCL does one thing at a time";
  Groups groups = make_groups(2);
  expect_success(groups, [](RankContext c) {
    Vector<float> first = values<float>(random_value, 1, 1000);
    Vector<float> second = values<float>(random_value, 2, 2000);
    const auto move = [&](Vector<float>& data, Stream& stream) {
      if (c.rank() == 0) c.group.send(view_of(data), 1, stream);
      if (c.rank() == 1) c.group.recv(view_of(data), 0, stream);
    };
    for (int round = 0; round < kRounds; ++round) {
      if (c.rank() == 1) first.assign(first.size(), 0.F);
      if (c.rank() == 1) second.assign(second.size(), 0.F);
      move(first, c.stream);
      move(second, c.second_stream);
      c.stream.synchronize();
      c.second_stream.synchronize();
      expect_same_bits(first, values<float>(random_value, 1, 1000), "the first");
      expect_same_bits(second, values<float>(random_value, 2, 2000), "the second");
    }
  });
}

template <typename In, typename Out>
void check_reduce_scatter(RankContext c, std::int64_t numel, ValueOf<In> value, bool accumulate) {
  Vector<In> input = values(value, c.rank(), numel * c.size());
  Vector<Out> output = values<Out>(random_value, 100 + c.rank(), numel);
  const Vector<Out> before = output;
  const Vector<Out> expected = ordered_sum_oracle<In, Out>(
      value, c.size(), c.rank() * numel, (c.rank() + 1) * numel, accumulate ? &before : nullptr);
  c.group.reduce_scatter(view_of(input), view_of(output), accumulate, c.stream);
  c.stream.synchronize();
  expect_same_bits(output, expected, describe(c.size(), numel, c.rank()));
  expect_same_bits(input, values(value, c.rank(), numel * c.size()), "the input was changed");
}

template <typename T>
class ReduceScatterTest : public ::testing::Test {};
template <typename In_, typename Out_>
struct Dtypes {
  using In = In_;
  using Out = Out_;
};
using ReduceDtypes = ::testing::Types<Dtypes<float, float>, Dtypes<bfloat16, bfloat16>,
                                      Dtypes<bfloat16, float>, Dtypes<float, bfloat16>>;
TYPED_TEST_SUITE(ReduceScatterTest, ReduceDtypes);

TYPED_TEST(ReduceScatterTest, SumsInRankOrder) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  for_each_size([](RankContext c, std::int64_t numel) {
    for (ValueOf<In> value : {&exact_value<In>, &random_value<In>}) {
      check_reduce_scatter<In, Out>(c, numel, value, false);
      check_reduce_scatter<In, Out>(c, numel, value, true);
    }
  });
}

TYPED_TEST(ReduceScatterTest, InPlace) {
  using In = typename TypeParam::In;
  if (!std::is_same_v<In, typename TypeParam::Out>) return;  // in place means one dtype
  for_each_size([](RankContext c, std::int64_t numel) {
    if (test::kSanitized && numel > 1000 && c.size() != 3) return;
    Vector<In> data = values<In>(random_value, c.rank(), numel * c.size());
    c.group.reduce_scatter(view_of(data), view_of(data).narrow(0, c.rank() * numel, numel), false,
                           c.stream);
    c.stream.synchronize();
    Vector<In> expected = values<In>(random_value, c.rank(), numel * c.size());
    const Vector<In> own = ordered_sum_oracle<In, In>(random_value, c.size(), c.rank() * numel,
                                                      (c.rank() + 1) * numel, nullptr);
    std::copy(own.begin(), own.end(), expected.begin() + c.rank() * numel);
    expect_same_bits(data, expected, describe(c.size(), numel, c.rank()));
  });
}

template <typename T>
class AllReduceTest : public ::testing::Test {};
using AllReduceDtypes = ::testing::Types<float, bfloat16, double, std::int64_t>;
TYPED_TEST_SUITE(AllReduceTest, AllReduceDtypes);

TYPED_TEST(AllReduceTest, SumsInRankOrderOnEveryRank) {
  for_each_size([](RankContext c, std::int64_t numel) {
    for (ValueOf<TypeParam> value : {&exact_value<TypeParam>, &random_value<TypeParam>}) {
      Vector<TypeParam> data = values(value, c.rank(), numel);
      c.group.all_reduce(view_of(data), c.stream);
      c.stream.synchronize();
      expect_same_bits(data,
                       ordered_sum_oracle<TypeParam, TypeParam>(value, c.size(), 0, numel, nullptr),
                       describe(c.size(), numel, c.rank()));
    }
  });
}

// So large that a rank sums its chunk in pieces, of which the last is short.
TYPED_TEST(AllReduceTest, SumsLargeBuffersInRankOrder) {
  constexpr std::int64_t kNumel = 300'003;
  Groups groups = make_groups(2);
  expect_success(groups, [](RankContext c) {
    Vector<TypeParam> data = values<TypeParam>(random_value, c.rank(), kNumel);
    c.group.all_reduce(view_of(data), c.stream);
    c.stream.synchronize();
    expect_same_bits(
        data, ordered_sum_oracle<TypeParam, TypeParam>(random_value, c.size(), 0, kNumel, nullptr),
        describe(c.size(), kNumel, c.rank()));
  });
}

TEST(OracleTest, RandomValuesAreSensitiveToTheOrder) {
  int differ = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const float a = random_value<float>(0, i);
    const float b = random_value<float>(1, i);
    const float c = random_value<float>(2, i);
    if ((a + b) + c != a + (b + c)) ++differ;
  }
  EXPECT_GT(differ, 100);
}

TEST(ThreadGroupTest, BarrierComesAfterEverybodysEarlierWork) {
  for (int size : kWorldSizes) {
    Groups groups = make_groups(size);
    std::vector<int> arrived(static_cast<std::size_t>(size));
    expect_success(groups, [&](RankContext c) {
      enqueue(c.stream, [&] { arrived[static_cast<std::size_t>(c.rank())] = 1; });
      c.group.barrier(c.stream);
      enqueue(c.stream, [&] { EXPECT_EQ(std::count(arrived.begin(), arrived.end(), 1), size); });
      c.stream.synchronize();
    });
  }
}

TEST(ThreadGroupTest, CountsTraffic) {
  Groups groups = make_groups(4);
  expect_success(groups, [](RankContext c) {
    Vector<float> part(25);
    Vector<float> whole(100);
    c.group.all_gather(view_of(part), view_of(whole), c.stream);
    c.group.all_gather(view_of(part), view_of(whole), c.stream);
    c.group.reduce_scatter(view_of(whole), view_of(part), true, c.stream);
    c.group.all_reduce(view_of(whole), c.stream);
    c.group.barrier(c.stream);
    c.stream.synchronize();
    const Traffic traffic = c.group.traffic();
    EXPECT_EQ(traffic.calls_of(CollectiveKind::kAllGather), 2);
    EXPECT_EQ(traffic.sent_of(CollectiveKind::kAllGather), 600);
    EXPECT_EQ(traffic.sent_of(CollectiveKind::kReduceScatter), 300);
    EXPECT_EQ(traffic.sent_of(CollectiveKind::kAllReduce), 600);
    EXPECT_EQ(traffic.calls_of(CollectiveKind::kBarrier), 1);
    // Of 4 parts of 25 floats, 3 come from others and wait for their sum: twice.
    EXPECT_EQ(traffic.copied_bytes, testing_nccl() ? 2 * 3 * 100 : 0);
  });
}

TEST(ThreadGroupTest, WrongArgumentsAreThrownAtTheCallWithNumbers) {
  Groups groups = make_groups(3);
  const auto stream = device_under_test().create_stream({.name = "s"});
  Vector<float> data(30);
  Vector<double> wide(30);
  ProcessGroup& group = *groups[1];
  const TensorView whole = view_of(data);
  const TensorView part = whole.narrow(0, 10, 10);
  const auto code_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::optional(error.code());
    }
    return std::optional<ErrorCode>();
  };
  const std::vector<std::function<void()>> wrong{
      [&] { group.all_gather(whole.narrow(0, 0, 9), whole, *stream); },   // 27 of 30
      [&] { group.all_gather(whole.narrow(0, 0, 10), whole, *stream); },  // part 0 on rank 1
      [&] { group.all_gather(part, view_of(wide), *stream); },            // dtypes
      [&] { group.reduce_scatter(view_of(wide), view_of(wide), false, *stream); },
      [&] { group.reduce_scatter(whole, part, true, *stream); },  // counts itself twice
      [&] {
        group.all_reduce(whole.reshape({5, 6}).narrow(1, 0, 2), *stream);
      },  // strided
      [&] { group.all_to_all(whole, whole, *stream); },
      [&] { group.broadcast(whole, 3, *stream); },
      [&] { group.send(whole, 1, *stream); },  // itself
      [&] { group.recv(whole, -1, *stream); },
  };
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_EQ(code_of(wrong[i]), ErrorCode::kInvalidArgument) << "call " << i;
  }
  EXPECT_EQ(group.traffic(), Traffic{});
  try {
    wrong[0]();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("30"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("27"), std::string::npos) << error.what();
  }
  EXPECT_THROW(make_thread_group(0), Error);
}

}  // namespace
}  // namespace tessera
