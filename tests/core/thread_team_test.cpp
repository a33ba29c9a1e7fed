#include "tessera/core/thread_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <array>
#include <chrono>
#include <ctime>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

double cpu_seconds_of_process() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

TEST(ThreadTeam, EveryPartRunsOnceOnAThreadOfItsOwn) {
  for (const int threads : {1, 2, 5, 3, 5}) {
    const TeamLimit limit(threads);
    std::vector<std::thread::id> ids(static_cast<std::size_t>(threads));
    on_team(threads, [&](int thread) {
      ids[static_cast<std::size_t>(thread)] = std::this_thread::get_id();
    });
    EXPECT_EQ(ids[0], std::this_thread::get_id());
    EXPECT_THAT(std::set<std::thread::id>(ids.begin(), ids.end()),
                SizeIs(static_cast<std::size_t>(threads)));
  }
}

TEST(ThreadTeam, WhatOnePartWritesAllSeeAfterwards) {
  const TeamLimit limit(4);
  std::array<int, 4> counts{};  // no atomics: the team must order these
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    on_team(1 + round % 4, [&](int thread) {
      ++counts[static_cast<std::size_t>((thread + round) % (1 + round % 4))];
    });
  }
  EXPECT_EQ(counts[0] + counts[1] + counts[2] + counts[3], kRounds / 4 * (1 + 2 + 3 + 4));
}

TEST(ThreadTeam, InsideOfItWorkStaysOnItsThread) {
  const TeamLimit limit(3);
  std::array<int, 3> limits{}, openmp{}, inner{};
  on_team(3, [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    limits[t] = team_threads();
    openmp[t] = omp_get_max_threads();
    on_team(1, [&](int) { ++inner[t]; });
  });
  EXPECT_THAT(limits, Each(1));
  EXPECT_THAT(openmp, Each(1));
  EXPECT_THAT(inner, Each(1));
  EXPECT_EQ(team_threads(), 3);
}

TEST(ThreadTeam, LimitsEndWhereTheyBegan) {
  const int before = team_threads();
  const int openmp = omp_get_max_threads();
  {
    const TeamLimit two(2);
    EXPECT_EQ(team_threads(), 2);
    int elsewhere = 0;
    std::thread([&] { elsewhere = team_threads(); }).join();
    EXPECT_EQ(elsewhere, before) << "a limit holds for its thread only";
    on_team(2, [](int) {});
  }
  EXPECT_EQ(team_threads(), before);
  EXPECT_EQ(omp_get_max_threads(), openmp);
}

TEST(ThreadTeam, TheFirstPartsExceptionIsThrownWhenAllAreDone) {
  const TeamLimit limit(4);
  std::array<int, 4> done{};
  const auto run = [&](std::set<int> bad) -> std::string {
    try {
      on_team(4, [&](int thread) {
        if (thread > 0) std::this_thread::sleep_for(milliseconds(4 - thread));  // the last first
        ++done[static_cast<std::size_t>(thread)];
        if (bad.contains(thread)) fail(ErrorCode::kInternal, "part ", thread);
      });
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(run({2, 3}), "part 2");
  EXPECT_EQ(run({0, 1}), "part 0");
  EXPECT_EQ(run({3}), "part 3");
  EXPECT_EQ(run({}), "nothing") << "an exception stays with the work that threw it";
  EXPECT_THAT(done, Each(4));
}

TEST(ThreadTeam, RefusesMoreThreadsThanTheLimit) {
  const TeamLimit limit(2);
  for (const int threads : {0, 3}) {
    try {
      on_team(threads, [](int) {});
      ADD_FAILURE() << threads;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("a team of 2"));
    }
  }
  EXPECT_THROW(TeamLimit(0), Error);
}

/// Helpers between two pieces of work, and the caller behind its own part, leave their cores to
/// other programs: they would keep both busy all the time otherwise.
TEST(ThreadTeam, WhoWaitsTakesLittleCpuTime) {
  const TeamLimit limit(2);
  constexpr int kRounds = 50;
  constexpr milliseconds kSleep{2};
  const double begin = cpu_seconds_of_process();
  for (int round = 0; round < kRounds; ++round) {
    on_team(2, [&](int thread) {
      if (thread == 1) std::this_thread::sleep_for(kSleep);
    });
    std::this_thread::sleep_for(kSleep);
  }
  const double slept = 2 * kRounds * std::chrono::duration<double>(kSleep).count();
  EXPECT_LT(cpu_seconds_of_process() - begin, slept / 2);
}

}  // namespace
}  // namespace tessera
