#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "support/chain_run.h"

// One rank fails: every rank must hear of it, soon and with the reason, and be destructible.
namespace tessera::test::executor_failure_test {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;
constexpr int kSteps = 4;
constexpr char kCause[] = "the disk is on fire";
// Ranks that hear nothing of a failure give up after 30 s, the timeout of their group.
constexpr auto kDeadline = std::chrono::seconds(10);

/// How one rank's training ended.
struct Ending {
  std::string what;             ///< empty: it did not fail
  bool aborted = false;         ///< Error{kAborted}
  std::int64_t good_steps = 0;  ///< that came back before
  bool clean = false;           ///< no memory was left behind
};

/// When the failing rank threw; set once.
class Alarm {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    if (at_ == Clock::time_point{}) at_ = Clock::now();
  }
  Clock::duration since() const {
    const std::lock_guard lock(mutex_);
    return Clock::now() - at_;
  }

 private:
  mutable std::mutex mutex_;
  Clock::time_point at_{};
};

Ending train_until_failure(const ChainRun& chain, ProcessGroup& end, ExecutorOptions options) {
  Ending ending;
  ChainRank member(chain, end, std::move(options));
  try {
    for (int step = 0; step < kSteps; ++step) {
      member.executor->run_step(step, kRate);
      ++ending.good_steps;
    }
  } catch (const Error& error) {
    ending.what = error.what();
    ending.aborted = error.code() == ErrorCode::kAborted;
  } catch (const std::exception& error) {
    ending.what = error.what();
  } catch (...) {
    ending.what = "something else";
  }
  member.executor.reset();
  member.state.reset();
  ending.clean = member.memory.current() == MemoryUse{};
  return ending;
}

/// All ranks on raw threads: nobody but the executors spreads the news.
std::vector<Ending> train_until_failure(const ChainRun& chain,
                                        const std::function<ExecutorOptions(int rank)>& options) {
  const auto world = make_thread_group(chain.run.ranks);  // times out after 30 s
  std::vector<Ending> endings(static_cast<std::size_t>(chain.run.ranks));
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    threads.emplace_back([&, rank] {
      endings[rank] = train_until_failure(chain, *world[rank], options(static_cast<int>(rank)));
    });
  }
  threads.clear();
  return endings;
}

std::vector<Ending> train_until_failure(const ChainRun& chain) {
  return train_until_failure(chain, [&](int) { return chain.options; });
}

void expect_failure(const std::vector<Ending>& endings, std::size_t failing) {
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    SCOPED_TRACE(concat("rank ", rank));
    EXPECT_THAT(endings[rank].what, HasSubstr(kCause));
    EXPECT_EQ(endings[rank].aborted, rank != failing);
    EXPECT_EQ(endings[rank].good_steps, 1);
    EXPECT_TRUE(endings[rank].clean);
  }
}

constexpr const char* kStrategies[] = {"no_shard", "zero1", "zero2", "full_shard", "hybrid_shard"};

/// Throws on the rank whose data are micro-batch `batch`.
Hook fail_at(Moment moment, int layer, std::int64_t batch, Alarm& alarm) {
  return [=, &alarm](Moment m, int l, std::int64_t b) {
    if (m != moment || l != layer || b != batch) return;
    alarm.set();
    throw std::runtime_error(kCause);
  };
}

TEST(ExecutorFailure, ALayerThatThrowsStopsEveryRank) {
  for (const char* strategy : kStrategies) {
    for (const Moment moment : {Moment::kForward, Moment::kBackward}) {
      for (const int layer : {0, 2, kChainLayers - 1}) {
        const int part = layer % kRanks;  // in step 1
        SCOPED_TRACE(concat(strategy, moment == Moment::kForward ? " forward" : " backward",
                            " of layer ", layer));
        Alarm alarm;
        ChainRun chain{.run = {.ranks = kRanks, .strategy = strategy},
                       .model = make_chain({.hook = fail_at(moment, layer, kRanks + part, alarm)})};
        const ShardNesting nesting(chain.schedule.mesh, chain.schedule.placement);
        std::size_t failing = 0;
        while (nesting.index(nesting.all_axes(), static_cast<int>(failing)) != part) ++failing;
        const auto endings = train_until_failure(chain);
        EXPECT_LT(alarm.since(), kDeadline);
        expect_failure(endings, failing);
      }
    }
  }
}

TEST(ExecutorFailure, RecomputationThatThrowsStopsEveryRank) {
  Alarm alarm;
  std::atomic<int> calls{0};
  const ChainRun chain{
      .run = {.ranks = kRanks, .strategy = "full_shard", .policy = {.recompute = Recompute::kFull}},
      .model = make_chain({.hook = [&](Moment moment, int layer, std::int64_t batch) {
        if (moment != Moment::kForward || layer != 1 || batch != kRanks + 3) return;
        if (++calls == 1) return;  // the first time is not recomputed
        alarm.set();
        throw std::runtime_error(kCause);
      }})};
  const auto endings = train_until_failure(chain);
  EXPECT_LT(alarm.since(), kDeadline);
  expect_failure(endings, 3);
}

TEST(ExecutorFailure, ASourceThatThrowsStopsEveryRank) {
  for (const char* strategy : kStrategies) {
    SCOPED_TRACE(strategy);
    Alarm alarm;
    ChainRun chain{.run = {.ranks = kRanks, .strategy = strategy}};
    chain.source.before_fill = [&](std::int64_t first) {
      if (first != kRanks * kMicroBatch) return;  // rank 0 in step 1
      alarm.set();
      fail(ErrorCode::kIo, kCause);
    };
    const auto endings = train_until_failure(chain);
    EXPECT_LT(alarm.since(), kDeadline);
    expect_failure(endings, 0);
  }
}

// Whatever is thrown, even by the host thread.
TEST(ExecutorFailure, ThrownIntegersStopEveryRankToo) {
  for (const bool by_source : {true, false}) {
    Alarm alarm;
    const auto explode = [&](bool now) {
      if (!now) return;
      alarm.set();
      throw 42;  // NOLINT: on purpose
    };
    ChainRun chain{.run = {.ranks = kRanks, .strategy = "full_shard"},
                   .model = make_chain({.hook = [&](Moment, int layer, std::int64_t batch) {
                     explode(!by_source && layer == 1 && batch == kRanks);
                   }})};
    chain.source.before_fill = [&](std::int64_t first) {
      explode(by_source && first == kRanks * kMicroBatch);
    };
    const auto endings = train_until_failure(chain);
    EXPECT_LT(alarm.since(), kDeadline);
    EXPECT_EQ(endings[0].what,
              by_source ? "the batch source failed at step 2, samples 8 to 9: an unknown exception"
                        : "something else");
    for (std::size_t rank = 1; rank < endings.size(); ++rank) {
      EXPECT_TRUE(endings[rank].aborted) << endings[rank].what;
      EXPECT_THAT(endings[rank].what, HasSubstr("unknown exception"));
    }
  }
}

// Any task of any lane; the later ones of a step may let the others finish that step.
TEST(ExecutorFailure, NoTaskMayFailInSilence) {
  for (const char* strategy : {"zero1", "full_shard", "hybrid_full_optimizer"}) {
    for (int task = 1; task < 130; task += 7) {
      SCOPED_TRACE(concat(strategy, " task ", task));
      Alarm alarm;
      std::atomic<int> left{task};
      const ChainRun chain{.run = {.ranks = kRanks, .strategy = strategy}};
      const auto endings = train_until_failure(chain, [&](int rank) {
        ExecutorOptions options = chain.options;
        if (rank == 1) {
          options.before_task = [&](Lane) {
            if (--left != 0) return;
            alarm.set();
            throw std::runtime_error(kCause);
          };
        }
        return options;
      });
      ASSERT_LE(left, 0) << "the rank ran fewer tasks than that";
      EXPECT_LT(alarm.since(), kDeadline);
      for (std::size_t rank = 0; rank < endings.size(); ++rank) {
        EXPECT_THAT(endings[rank].what, HasSubstr(kCause)) << "rank " << rank;
        EXPECT_EQ(endings[rank].aborted, rank != 1) << "rank " << rank;
        EXPECT_LE(std::abs(endings[rank].good_steps - endings[1].good_steps), 1);
        EXPECT_TRUE(endings[rank].clean) << "rank " << rank;
      }
    }
  }
}

TEST(ExecutorFailure, LaunchRanksReportsTheRootCause) {
  for (const char* strategy : kStrategies) {
    Alarm alarm;
    const ChainRun chain{
        .run = {.ranks = kRanks, .strategy = strategy},
        .model = make_chain({.hook = fail_at(Moment::kBackward, 1, kRanks, alarm)})};
    try {
      train(chain);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), concat("rank 0: ", kCause)) << strategy;
    }
    EXPECT_LT(alarm.since(), kDeadline);
  }
}

// A rank that never gets as far as a step must not leave the others waiting in theirs.
TEST(ExecutorFailure, ARankWithoutEnoughMemoryStopsEveryRank) {
  const ChainRun chain{.run = {.ranks = kRanks, .strategy = "full_shard"}};
  const auto world = make_thread_group(kRanks);
  const auto begin = Clock::now();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto device = make_cpu_device();
      Memory memory(*device, rank == 2 ? 1000 : 0);
      RankGroups groups =
          RankGroups::split_from(*world[static_cast<std::size_t>(rank)], chain.schedule);
      try {
        const auto state = [&] {
          try {
            return std::make_unique<TrainingState>(chain.layout, state_options(chain.schedule),
                                                   rank, memory);
          } catch (const Error& error) {
            groups.abort(error.what());
            throw;
          }
        }();
        Executor executor(*state, chain.model, {{&chain.schedule, &chain.source}}, groups, memory,
                          chain.options);
        executor.run_step(0, kRate);
        ADD_FAILURE() << "nothing was thrown on rank " << rank;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), rank == 2 ? ErrorCode::kOutOfMemory : ErrorCode::kAborted);
        EXPECT_THAT(error.what(), HasSubstr("limit"));
      }
      EXPECT_EQ(memory.current(), MemoryUse{});
    });
  }
  threads.clear();
  EXPECT_LT(Clock::now() - begin, kDeadline);
}

}  // namespace
}  // namespace tessera::test::executor_failure_test
