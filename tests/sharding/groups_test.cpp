#include "tessera/sharding/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/grid.h"
#include "support/small_layout.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/planner.h"
#include "tessera/trainer/launch.h"

namespace tessera::test::groups_test {
namespace {

using ::testing::HasSubstr;

Schedule schedule_for(const Strategy& strategy, const Mesh& mesh, ReductionOrder order) {
  return plan(small_layout(mesh.world_size()),
              {.mesh = mesh,
               .placement = strategy.placement,
               .reshard_after_forward = strategy.reshard_after_forward,
               .reduction_order = order});
}

void for_each_schedule(const std::function<void(const Schedule&)>& visit) {
  for (const Strategy& strategy : strategies()) {
    for (const Mesh mesh :
         {grid(1, 1), grid(1, 4), grid(2, 2), grid(3, 2), grid(2, 3), grid(4, 1)}) {
      for (const ReductionOrder order : {ReductionOrder::kRank, ReductionOrder::kHierarchical}) {
        SCOPED_TRACE(concat(strategy.name, " on ", shape_of(mesh), ", ", to_string(order)));
        visit(schedule_for(strategy, mesh, order));
      }
    }
  }
}

/// The global ranks of a group's members in its order, as an all-gather finds them.
std::vector<std::int32_t> members_of(ProcessGroup& group, int global_rank, Stream& stream) {
  std::vector<std::int32_t> mine{global_rank};
  std::vector<std::int32_t> all(static_cast<std::size_t>(group.size()), -1);
  group.all_gather(TensorView(mine.data(), DType::kInt32, Shape{1}),
                   TensorView(all.data(), DType::kInt32, Shape{group.size()}), stream);
  stream.synchronize();
  return all;
}

/// The ranks that differ from `rank` along `axes`, by their index in cutting order.
std::vector<std::int32_t> expected_members(const ShardNesting& nesting, AxisSet axes, int rank) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(nesting.mesh().size(axes)), -1);
  for (const int member : nesting.mesh().group(axes, rank)) {
    out[static_cast<std::size_t>(nesting.index(axes, member))] = member;
  }
  return out;
}

TEST(RankGroups, MembersComeInCuttingOrder) {
  for_each_schedule([](const Schedule& schedule) {
    const ShardNesting nesting(schedule.mesh, schedule.placement);
    launch_ranks(make_thread_group(schedule.mesh.world_size()), [&](int rank, ProcessGroup& world) {
      const auto device = make_cpu_device();
      const auto stream = device->create_stream({});
      const RankGroups groups = RankGroups::split_from(world, schedule);
      EXPECT_EQ(groups.rank(), rank);
      for (const Action& action : schedule.actions) {
        if (action.axes.empty()) continue;
        ProcessGroup& group = groups.of(action.lane, action.axes);
        EXPECT_EQ(group.size(), schedule.mesh.size(action.axes));
        EXPECT_EQ(group.rank(), nesting.index(action.axes, rank));
        EXPECT_EQ(members_of(group, rank, *stream), expected_members(nesting, action.axes, rank))
            << action.operation->name << " over " << to_string(action.axes);
      }
      if (schedule.mesh.world_size() == 1) {
        EXPECT_EQ(groups.control(), nullptr);
        return;
      }
      EXPECT_EQ(members_of(*groups.control(), rank, *stream),
                expected_members(nesting, nesting.all_axes(), rank));
    });
  });
}

TEST(RankGroups, LanesAndScalarsShareNoGroup) {
  const Schedule schedule =
      schedule_for(find_strategy("hybrid_full_optimizer"), grid(2, 2), ReductionOrder::kRank);
  launch_ranks(make_thread_group(4), [&](int, ProcessGroup& world) {
    const RankGroups groups = RankGroups::split_from(world, schedule);
    std::set<ProcessGroup*> distinct{groups.control()};
    std::set<std::pair<Lane, std::string>> kinds;
    for (const Action& action : schedule.actions) {
      if (action.axes.empty()) continue;
      kinds.emplace(action.lane, to_string(action.axes));
      distinct.insert(&groups.of(action.lane, action.axes));
    }
    EXPECT_GE(kinds.size(), 3U);
    EXPECT_EQ(distinct.size(), kinds.size() + 1);
  });
}

TEST(RankGroups, NamesTheMissingCollective) {
  const Schedule schedule =
      schedule_for(find_strategy("full_shard"), grid(1, 2), ReductionOrder::kRank);
  const Schedule* const one = &schedule;
  const RankGroups groups = RankGroups::simulated(0, std::span(&one, 1));
  EXPECT_NO_THROW(groups.of(Lane::kGather, {Axis::kShard}));
  for (const auto& [lane, axes] : {std::pair<Lane, AxisSet>{Lane::kGather, {Axis::kReplicate}},
                                   {Lane::kCompute, {Axis::kShard}},
                                   {Lane::kReduce, {}}}) {
    try {
      groups.of(lane, axes);
      ADD_FAILURE() << "nothing was thrown for " << to_string(lane) << ' ' << to_string(axes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      EXPECT_THAT(error.what(), HasSubstr(std::string(to_string(lane))));
      EXPECT_THAT(error.what(), HasSubstr(to_string(axes)));
    }
  }
}

TEST(RankGroups, RefusesAWorldOfAnotherSize) {
  const Schedule schedule =
      schedule_for(find_strategy("full_shard"), grid(1, 3), ReductionOrder::kRank);
  const auto world = make_thread_group(1);
  try {
    RankGroups::split_from(*world[0], schedule);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("for 3 ranks"));
    EXPECT_THAT(error.what(), HasSubstr("has 1"));
  }
}

TEST(RankGroups, AbortReachesEveryGroupOfEveryRank) {
  const Schedule schedule =
      schedule_for(find_strategy("hybrid_full_optimizer"), grid(2, 2), ReductionOrder::kRank);
  std::atomic<int> failures{0};
  launch_ranks(make_thread_group(4), [&](int rank, ProcessGroup& world) {
    const auto device = make_cpu_device();
    const RankGroups groups = RankGroups::split_from(world, schedule);
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      groups.abort("rank 2 ran out of patience");
      return;
    }
    const auto expect_aborted = [&](ProcessGroup& group) {
      const auto stream = device->create_stream({});
      try {
        while (true) {
          group.barrier(*stream);  // a group without rank 2 goes on until the abort
          stream->synchronize();
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kAborted);
        EXPECT_THAT(error.what(), HasSubstr("rank 2 ran out of patience"));
        ++failures;
      }
    };
    expect_aborted(groups.of(Lane::kGather, {Axis::kShard}));
    expect_aborted(groups.of(Lane::kGather, {Axis::kReplicate}));
    expect_aborted(groups.of(Lane::kReduce, {Axis::kReplicate, Axis::kShard}));
    expect_aborted(*groups.control());
  });
  EXPECT_EQ(failures, 3 * 4);
}

TEST(RankGroups, SimulatedOnesHaveTheSizesOfRealOnes) {
  for_each_schedule([](const Schedule& schedule) {
    const ShardNesting nesting(schedule.mesh, schedule.placement);
    const Schedule* const one = &schedule;
    for (int rank = 0; rank < schedule.mesh.world_size(); ++rank) {
      const RankGroups groups = RankGroups::simulated(rank, std::span(&one, 1));
      EXPECT_EQ(groups.rank(), rank);
      ASSERT_EQ(groups.control() == nullptr, schedule.mesh.world_size() == 1);
      if (groups.control() != nullptr) {
        EXPECT_EQ(groups.control()->size(), schedule.mesh.world_size());
        EXPECT_EQ(groups.control()->rank(), nesting.index(nesting.all_axes(), rank));
      }
      for (const Action& action : schedule.actions) {
        if (action.axes.empty()) continue;
        const ProcessGroup& group = groups.of(action.lane, action.axes);
        EXPECT_EQ(group.size(), schedule.mesh.size(action.axes));
        EXPECT_EQ(group.rank(), nesting.index(action.axes, rank));
      }
    }
  });
}

TEST(RankGroups, TrafficCountsScalarsButNoExport) {
  const Schedule schedule = schedule_for(find_strategy("zero1"), grid(1, 3), ReductionOrder::kRank);
  launch_ranks(make_thread_group(3), [&](int rank, ProcessGroup& world) {
    const auto device = make_cpu_device();
    const auto stream = device->create_stream({});
    const RankGroups groups = RankGroups::split_from(world, schedule);
    members_of(*groups.control(), rank, *stream);
    EXPECT_EQ(groups.traffic(), Traffic{});
    std::vector<std::int64_t> scalars(3, rank);
    groups.control()->all_reduce(TensorView(scalars.data(), DType::kInt64, Shape{3}), *stream);
    stream->synchronize();
    EXPECT_THAT(scalars, ::testing::Each(0 + 1 + 2));
    EXPECT_EQ(groups.traffic().calls_of(CollectiveKind::kAllReduce), 1);
    EXPECT_EQ(groups.traffic().sent_of(CollectiveKind::kAllReduce), 2 * (3 * 8) * 2 / 3);
    members_of(groups.of(Lane::kReduce, {Axis::kShard}), rank, *stream);
    members_of(groups.of(Lane::kGather, {Axis::kShard}), rank, *stream);
    EXPECT_EQ(groups.traffic().calls_of(CollectiveKind::kAllGather), 2);
    EXPECT_EQ(groups.traffic().sent_of(CollectiveKind::kAllGather), 2 * 2 * 4);
  });
}

}  // namespace
}  // namespace tessera::test::groups_test
