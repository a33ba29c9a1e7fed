#include "tessera/collectives/nccl_group.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <atomic>
#include <thread>

#include "collectives/ranks.h"
#include "fake_cuda.h"
#include "fake_nccl.h"
#include "tessera/collectives/checked_group.h"
#include "tessera/core/cuda_device.h"

// What is NCCL's own: sums in another order, bf16 that it is not given to sum, staging,
// registration, and failures that it does not tell about.
namespace tessera {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::expect_same_bits;
using test::expect_success;
using test::Groups;
using test::kWorldSizes;
using test::Outcome;
using test::random_value;
using test::RankContext;
using test::run_ranks;
using test::values;
using test::Vector;
using test::view_of;

constexpr milliseconds kTimeout{1500};
constexpr milliseconds kPatience{60000};

Groups make_nccl(int size, NcclGroupOptions options = {}) {
  const NcclId id = make_nccl_id();
  Groups groups(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      groups[static_cast<std::size_t>(rank)] = make_nccl_group(id, rank, size, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return groups;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// |actual - exact| for a sum in any order: n - 1 roundings, each of at most half an ulp of the sum
/// of magnitudes, and first order in it.
template <typename In>
void expect_near_sum(float actual, int size, std::int64_t i, float first) {
  double exact = static_cast<double>(first), magnitude = std::abs(static_cast<double>(first));
  for (int r = 0; r < size; ++r) {
    const auto term = static_cast<double>(static_cast<float>(random_value<In>(r, i)));
    exact += term;
    magnitude += std::abs(term);
  }
  EXPECT_NEAR(static_cast<double>(actual), exact, (size + 1) * 0x1p-24 * magnitude) << i;
}

TEST(NcclSumTest, NcclsOwnOrderStaysWithinItsBound) {
  for (int size : kWorldSizes) {
    Groups groups = make_nccl(size);
    expect_success(groups, [&](RankContext c) {
      constexpr std::int64_t kNumel = 1000;
      Vector<float> input = values<float>(random_value, c.rank(), kNumel * size);
      Vector<float> output(kNumel), added(kNumel, 0.5F), all = input;
      c.group.reduce_scatter(view_of(input), view_of(output), false, c.stream);
      c.group.reduce_scatter(view_of(input), view_of(added), true, c.stream);
      c.group.all_reduce(view_of(all), c.stream);
      c.stream.synchronize();
      for (std::int64_t i = 0; i < kNumel; ++i) {
        const auto k = static_cast<std::size_t>(i);
        expect_near_sum<float>(output[k], size, c.rank() * kNumel + i, 0.0F);
        expect_near_sum<float>(added[k], size, c.rank() * kNumel + i, 0.5F);
      }
      for (std::int64_t i = 0; i < kNumel * size; ++i) {
        expect_near_sum<float>(all[static_cast<std::size_t>(i)], size, i, 0.0F);
      }
      // Only the accumulated one had to wait elsewhere.
      EXPECT_EQ(c.group.traffic().copied_bytes, 4 * kNumel);
    });
  }
}

TEST(NcclSumTest, Bf16IsSummedInFp32AndRankOrderAlways) {
  for (int size : kWorldSizes) {
    Groups groups = make_nccl(size);
    expect_success(groups, [&](RankContext c) {
      constexpr std::int64_t kNumel = 333;
      Vector<bfloat16> input = values<bfloat16>(random_value, c.rank(), kNumel * size);
      Vector<float> output(kNumel);
      Vector<bfloat16> all = input;
      c.group.reduce_scatter(view_of(input), view_of(output), false, c.stream);
      c.group.all_reduce(view_of(all), c.stream);
      c.stream.synchronize();
      expect_same_bits(output,
                       test::ordered_sum_oracle<bfloat16, float>(
                           random_value, size, c.rank() * kNumel, (c.rank() + 1) * kNumel, nullptr),
                       "reduce_scatter");
      expect_same_bits(all,
                       test::ordered_sum_oracle<bfloat16, bfloat16>(random_value, size, 0,
                                                                    kNumel * size, nullptr),
                       "all_reduce");
    });
  }
}

TEST(NcclGroupTest, BuffersAreRegisteredUntilTheGroupDies) {
  Groups groups = make_nccl(2);
  expect_success(groups, [](RankContext c) {
    Vector<float> data(64);
    auto& group = dynamic_cast<NcclGroup&>(c.group);
    EXPECT_EQ(group.register_buffer(data.data(), data.size() * sizeof(float)), "");
  });
  EXPECT_EQ(emulator::nccl_registrations(), 2);
  groups.clear();
  EXPECT_EQ(emulator::nccl_registrations(), 0);
}

TEST(NcclGroupTest, BuffersOfCheckedGroupsAreRegisteredToo) {
  Groups groups = make_nccl(2);
  for (auto& group : groups) group = make_checked_group(std::move(group));
  expect_success(groups, [](RankContext c) {
    Vector<float> data(64), all(128);
    const auto part = c.group.split(0, 0);
    for (ProcessGroup* const group : {&c.group, part.get()}) {
      auto& nccl = dynamic_cast<NcclGroup&>(*group);
      EXPECT_EQ(nccl.register_buffer(data.data(), data.size() * sizeof(float)), "");
      EXPECT_EQ(nccl.register_buffer(all.data(), all.size() * sizeof(float)), "");
    }
    EXPECT_GE(emulator::nccl_registrations(), 2);  // both buffers are in one segment
    const long before = emulator::nccl_registered_collectives();
    part->all_gather(view_of(data), view_of(all), c.stream);
    c.stream.synchronize();
    EXPECT_GT(emulator::nccl_registered_collectives(), before);
  });
  groups.clear();
  EXPECT_EQ(emulator::nccl_registrations(), 0);
}

TEST(NcclGroupTest, MemoryThatNcclCannotUseInPlaceIsTold) {
  const auto plain = make_cuda_device();
  void* const memory = plain->allocate(4096);  // lives longer than the group
  Groups groups = make_nccl(1);
  auto& group = dynamic_cast<NcclGroup&>(*groups[0]);
  const auto expect_told = [&](const std::string& reason) {
    const std::string why = group.register_buffer(memory, 4096);
    EXPECT_TRUE(contains(why, reason)) << why;
  };
  expect_told("not in memory of ncclMemAlloc");
  emulator::refuse_nccl_memory(true);
  EXPECT_FALSE(nccl_segments(0).take);
  emulator::refuse_nccl_memory(false);
  expect_told("ncclMemAlloc gave no memory");
  EXPECT_TRUE(nccl_segments(0).take);
}

TEST(NcclGroupTest, NegativeColorsAndStreamsOfTheHostAreRefused) {
  Groups groups = make_nccl(1);
  EXPECT_THROW(groups[0]->split(-1, 0), Error);
}

TEST(NcclFailureTest, AStalledRankEndsTheOthersInTime) {
  for (int size : {2, 4}) {
    Groups groups = make_nccl(size, {.timeout = kTimeout});
    const auto begin = steady_clock::now();
    const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
      Vector<float> data(100);
      c.group.all_reduce(view_of(data), c.stream);
      if (c.rank() != size - 1) c.group.all_reduce(view_of(data), c.stream);
      c.stream.synchronize();
    });
    EXPECT_LT(steady_clock::now() - begin, kPatience);
    EXPECT_FALSE(outcomes.back().code.has_value()) << outcomes.back().what;
    for (int r = 0; r < size - 1; ++r) {
      const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
      EXPECT_EQ(outcome.code, ErrorCode::kTimeout) << outcome.what;
      EXPECT_TRUE(contains(outcome.what, "all_reduce #1 on rank " + std::to_string(r)))
          << outcome.what;
      EXPECT_TRUE(contains(outcome.what, "1500 ms")) << outcome.what;
    }
  }
}

/// They wait inside NCCL, which connects the ranks.
TEST(NcclFailureTest, ARankMissingAtTheFirstOperationEndsTheOthersInTime) {
  const int before = emulator::nccl_aborts_during_calls();
  Groups groups = make_nccl(3, {.timeout = kTimeout});
  const auto begin = steady_clock::now();
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    if (c.rank() == 2) return;
    Vector<float> data(100);
    c.group.all_reduce(view_of(data), c.stream);
    c.stream.synchronize();
  });
  EXPECT_LT(steady_clock::now() - begin, kPatience);
  for (int r : {0, 1}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
    EXPECT_EQ(outcome.code, ErrorCode::kTimeout) << outcome.what;
    EXPECT_TRUE(contains(outcome.what, "all_reduce #0 on rank " + std::to_string(r)))
        << outcome.what;
    EXPECT_TRUE(contains(outcome.what, "1500 ms")) << outcome.what;
  }
  EXPECT_EQ(emulator::nccl_aborts_during_calls(), before + 2);
}

TEST(NcclFailureTest, TimeBehindOtherWorkOfTheStreamDoesNotCount) {
  Groups groups = make_nccl(2, {.timeout = kTimeout});
  expect_success(groups, [](RankContext c) {
    Vector<float> data(10);
    test::enqueue(c.stream, [] { std::this_thread::sleep_for(3 * kTimeout); });
    c.group.all_reduce(view_of(data), c.stream);
    c.stream.synchronize();
  });
}

TEST(NcclFailureTest, AReplayedGraphHasADeadlineOfItsOwn) {
  constexpr milliseconds kAllowance{50};
  Groups groups = make_nccl(2, {.timeout = kTimeout});
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    Vector<float> data(100);
    auto& stream = dynamic_cast<CudaStream&>(c.stream);
    stream.begin_capture();
    c.group.all_reduce(view_of(data), stream);
    const auto graph = stream.end_capture(nullptr);
    auto& group = dynamic_cast<NcclGroup&>(c.group);
    for (const int step : {1, 2}) {
      if (step == 2 && c.rank() == 1) return;
      group.watch_replay("step " + std::to_string(step), kAllowance, stream,
                         [&] { stream.launch(*graph); });
      stream.synchronize();
    }
  });
  EXPECT_FALSE(outcomes[1].code.has_value()) << outcomes[1].what;
  EXPECT_EQ(outcomes[0].code, ErrorCode::kTimeout);
  EXPECT_TRUE(contains(outcomes[0].what, "step 2 on rank 0 of 2")) << outcomes[0].what;
  EXPECT_TRUE(contains(outcomes[0].what, "1550 ms")) << outcomes[0].what;
}

/// NCCL ends a communicator only when no graph holds operations of it, and the graph is this
/// thread's.
TEST(NcclFailureTest, ARankThatOwnsAGraphCanAbort) {
  Groups groups = make_nccl(2, {.timeout = milliseconds(60000)});
  const auto begin = steady_clock::now();
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    const auto other = c.group.split(0, c.rank());
    Vector<float> data(100), more(100);
    auto& stream = dynamic_cast<CudaStream&>(c.stream);
    c.group.all_reduce(view_of(data), stream);
    other->all_reduce(view_of(more), stream);
    stream.begin_capture();
    c.group.all_reduce(view_of(data), stream);
    other->all_reduce(view_of(more), stream);
    const auto graph = stream.end_capture(nullptr);
    if (c.rank() == 0) stream.launch(*graph);  // which rank 1 does not come to
    std::this_thread::sleep_for(milliseconds(20));
    c.group.abort("enough");
    stream.synchronize();
  });
  EXPECT_LT(steady_clock::now() - begin, kPatience);
  EXPECT_EQ(outcomes[0].code, ErrorCode::kAborted);
  EXPECT_TRUE(contains(outcomes[0].what, "enough")) << outcomes[0].what;
}

TEST(NcclFailureTest, AbortReachesPendingAndFutureOperationsOfTheWholeFamily) {
  Groups groups = make_nccl(2, {.timeout = milliseconds(60000)});
  const auto begin = steady_clock::now();
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    const auto other = c.group.split(0, 0);
    Vector<float> data(100);
    other->barrier(c.stream);                                       // ranks are connected
    if (c.rank() == 0) other->all_reduce(view_of(data), c.stream);  // rank 1 does not come
    std::this_thread::sleep_for(milliseconds(20));
    c.group.abort("enough");
    c.group.abort("too late");
    try {
      other->barrier(c.second_stream);
      c.second_stream.synchronize();
      ADD_FAILURE() << "did not throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kAborted);
    }
    c.stream.synchronize();
  });
  EXPECT_LT(steady_clock::now() - begin, kPatience);
  EXPECT_EQ(outcomes[0].code, ErrorCode::kAborted);
  EXPECT_TRUE(contains(outcomes[0].what, "enough")) << outcomes[0].what;
}

TEST(NcclFailureTest, WhatNcclReportsFailsTheStream) {
  Groups groups = make_nccl(3, {.timeout = kTimeout});
  emulator::fail_next_nccl_operation(1);
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    Vector<float> data(100);
    c.group.all_reduce(view_of(data), c.stream);
    c.stream.synchronize();
  });
  EXPECT_EQ(outcomes[1].code, ErrorCode::kAborted);
  EXPECT_TRUE(contains(outcomes[1].what, "remote process exited")) << outcomes[1].what;
  EXPECT_EQ(outcomes[0].code, ErrorCode::kTimeout);
  EXPECT_EQ(outcomes[2].code, ErrorCode::kTimeout);
}

TEST(NcclFailureTest, MakingAndSplittingTimeOut) {
  EXPECT_THROW(make_nccl_group(make_nccl_id(), 0, 2, {.timeout = kTimeout}), Error);
  Groups groups = make_nccl(2, {.timeout = kTimeout});
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    if (c.rank() == 0) c.group.split(0, 0);
  });
  EXPECT_EQ(outcomes[0].code, ErrorCode::kTimeout);
  EXPECT_TRUE(contains(outcomes[0].what, "split over 2 ranks")) << outcomes[0].what;
}

/// NCCL makes communicators in a thread of its own, which ends when the one that is split is
/// aborted.
TEST(NcclFailureTest, ASplitThatIsAbortedLeavesNothingToNccl) {
  const int before = emulator::nccl_communicators();
  std::atomic<bool> gone{false};
  Groups groups = make_nccl(
      2, {.failure = [&] { return gone ? "a process is gone" : ""; },
          .on_abort =
              [](std::string_view) {
                std::this_thread::sleep_for(milliseconds(50));  // ranks know, communicators do not
              }});
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    if (c.rank() == 0) c.group.split(0, 0);
    std::this_thread::sleep_for(milliseconds(20));
    gone = true;
  });
  EXPECT_EQ(outcomes[0].code, ErrorCode::kAborted);
  EXPECT_TRUE(contains(outcomes[0].what, "a process is gone")) << outcomes[0].what;
  groups.clear();
  EXPECT_EQ(emulator::nccl_communicators(), before);
}

/// A communicator of one rank of the substitute, and a stream and memory for it.
class FakeNcclTest : public testing::Test {
 protected:
  FakeNcclTest() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&data_, sizeof(float)), cudaSuccess);
  }
  ~FakeNcclTest() override {
    EXPECT_EQ(cudaFree(data_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  void wait(ncclResult_t result) const {
    while (result == ncclInProgress) {
      std::this_thread::yield();
      ASSERT_EQ(ncclCommGetAsyncError(comm_, &result), ncclSuccess);
    }
    ASSERT_EQ(result, ncclSuccess);
  }
  void make(bool blocking) {
    ncclUniqueId id{};
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    wait(ncclCommInitRankConfig(&comm_, 1, id, 0, &config));
  }
  cudaGraph_t capture() const {
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    wait(ncclAllReduce(data_, data_, 1, ncclFloat32, ncclSum, comm_, stream_));
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    return graph;
  }
  cudaStream_t stream_ = nullptr;
  void* data_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

TEST_F(FakeNcclTest, OnlyABlockingCommunicatorLaunchesFromItsCallersThread) {
  for (const bool blocking : {true, false}) {
    make(blocking);
    const std::int64_t foreign = fake_cuda::counters().foreign_captures;
    const long background = emulator::nccl_background_launches();
    cudaGraph_t graph = capture();
    EXPECT_EQ(fake_cuda::counters().foreign_captures - foreign, blocking ? 0 : 1);
    EXPECT_EQ(emulator::nccl_background_launches() - background, blocking ? 0 : 1);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    wait(ncclCommFinalize(comm_));
    EXPECT_EQ(ncclCommDestroy(comm_), ncclSuccess);
  }
}

TEST_F(FakeNcclTest, AnAbortWaitsForGraphs) {
  make(true);
  cudaGraph_t graph = capture();
  std::atomic<bool> aborted{false};
  std::thread aborting([&] {
    EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess);
    aborted = true;
  });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(aborted);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  aborting.join();
}

TEST(NcclFailureTest, OneThreadAtATimeIsInsideNccl) { EXPECT_EQ(emulator::nccl_violations(), 0); }

}  // namespace
}  // namespace tessera
