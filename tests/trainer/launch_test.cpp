#include "tessera/trainer/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(LaunchRanks, RunsEveryRankOnce) {
  for (const int ranks : {1, 2, 7}) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(ranks));
    launch_ranks(ranks, [&](int rank) { ++calls[static_cast<std::size_t>(rank)]; });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
  EXPECT_THROW(launch_ranks(0, [](int) {}), Error);
}

TEST(LaunchRanks, TheRootCauseWinsOverRanksThatWereAborted) {
  std::atomic<bool> aborted{false};
  try {
    launch_ranks(3, [&](int rank) {
      if (rank == 0) {
        aborted = true;
        fail(ErrorCode::kAborted, "taken down");
      }
      // Comes later, and is the cause all the same.
      while (!aborted) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (rank == 2) fail(ErrorCode::kIo, "no disk");
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_STREQ(error.what(), "rank 2: no disk");
  }
}

TEST(LaunchRanks, KeepsTheOriginalOfAForeignException) {
  struct Own : std::runtime_error {
    using runtime_error::runtime_error;
  };
  try {
    launch_ranks(2, [](int rank) {
      if (rank == 1) throw Own("mine");
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1: mine");
    EXPECT_THROW(std::rethrow_if_nested(error), Own);
  }
}

TEST(LaunchRanks, ARankThatThrowsFreesThePeersThatWaitForIt) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    launch_ranks(make_thread_group(4, {.timeout = std::chrono::seconds(120)}),
                 [](int rank, ProcessGroup& group) {
                   if (rank == 3) fail(ErrorCode::kConfig, "bad luck");
                   const auto device = make_cpu_device();
                   const auto stream = device->create_stream({.name = "test"});
                   group.barrier(*stream);
                   stream->synchronize();
                 });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("rank 3: bad luck"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace tessera
