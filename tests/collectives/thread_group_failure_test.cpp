#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "collectives/ranks.h"

// A rank that throws, stalls, aborts or issues something else: every other rank gets a named error
// in time.
namespace tessera {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::Groups;
using test::make_groups;
using test::Outcome;
using test::RankContext;
using test::run_ranks;
using test::Vector;
using test::view_of;

using test::device_under_test;
using test::testing_cuda;

constexpr int kSizes[] = {2, 3, 4, 7};
constexpr milliseconds kTimeout{1500};
/// When every rank must be back: the deadline and what a loaded machine may add.
constexpr milliseconds kPatience{60000};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(FailureTest, AStalledRankIsNamed) {
  for (int size : kSizes) {
    Groups groups = make_groups(size, kTimeout);
    const auto begin = steady_clock::now();
    const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
      Vector<float> data(100);
      c.group.barrier(c.stream);
      if (c.rank() != size - 1) c.group.all_reduce(view_of(data), c.stream);
      c.stream.synchronize();
    });
    EXPECT_LT(steady_clock::now() - begin, kPatience);
    EXPECT_FALSE(outcomes.back().code.has_value()) << outcomes.back().what;
    int timeouts = 0;
    for (int r = 0; r < size - 1; ++r) {
      const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
      ASSERT_TRUE(outcome.code.has_value()) << "rank " << r;
      if (*outcome.code == ErrorCode::kTimeout) ++timeouts;
      EXPECT_TRUE(*outcome.code == ErrorCode::kTimeout || *outcome.code == ErrorCode::kAborted);
      EXPECT_TRUE(contains(outcome.what, "all_reduce #1")) << outcome.what;
      EXPECT_TRUE(contains(outcome.what, "rank " + std::to_string(size - 1) + " did not arrive"))
          << outcome.what;
      EXPECT_TRUE(contains(outcome.what, "1500 ms")) << outcome.what;
    }
    EXPECT_GE(timeouts, 1);
  }
}

TEST(FailureTest, EveryAbsentRankIsListed) {
  Groups groups = make_groups(4, kTimeout);
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    if (c.rank() == 2) c.group.barrier(c.stream);
  });
  EXPECT_EQ(outcomes[2].code, ErrorCode::kTimeout);
  EXPECT_TRUE(contains(outcomes[2].what, "ranks 0, 1, 3 did not arrive")) << outcomes[2].what;
}

// As the last stage of a pipeline, while the first ones fill it.
TEST(FailureTest, AWaitIsNotGivenUpWhileOtherRanksGetOn) {
  if (testing_cuda()) GTEST_SKIP() << "a receive on a GPU waits when more enters its stream";
  Groups groups = make_groups(3, kTimeout);
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    const auto pair = c.group.split(c.rank() == 2 ? 1 : 0, c.rank());
    Vector<float> data(5);
    if (c.rank() == 2) {
      c.group.recv(view_of(data), 1, c.stream);
      return c.stream.synchronize();
    }
    const auto begin = steady_clock::now();
    for (float late = 0.0F; late == 0.0F;) {  // both leave after the same round
      std::this_thread::sleep_for(milliseconds(20));
      Vector<float> sum(1, steady_clock::now() - begin > 2 * kTimeout ? 1.0F : 0.0F);
      pair->all_reduce(view_of(sum), c.stream);
      c.stream.synchronize();
      late = sum[0];
    }
    if (c.rank() == 1) c.group.send(view_of(data), 2, c.stream);
    c.stream.synchronize();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_FALSE(outcome.code.has_value()) << outcome.what;
  }
}

TEST(FailureTest, AGroupWithALabelIsNamedByIt) {
  Groups groups = make_groups(2, kTimeout);
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    const auto pair = c.group.split(0, c.rank());
    pair->set_label("the messages from here to there");
    if (c.rank() == 0) pair->barrier(c.stream);
    c.stream.synchronize();
  });
  EXPECT_EQ(outcomes[0].code, ErrorCode::kTimeout);
  EXPECT_TRUE(contains(outcomes[0].what, "of 2 of the messages from here to there: rank 1"))
      << outcomes[0].what;
}

TEST(FailureTest, RanksThatMeanDifferentRootsAreNamed) {
  for (int round = 0; round < 20; ++round) {  // what is wrong may be overtaken by the next call
    Groups groups = make_groups(3, milliseconds(60000));
    const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
      Vector<float> first(1), second(1);
      c.group.broadcast(view_of(first), c.rank() == 2 ? 1 : 0, c.stream);
      c.group.broadcast(view_of(second), 1, c.stream);
      c.stream.synchronize();
    });
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.code.has_value());
      EXPECT_TRUE(contains(outcome.what, "broadcast of 1 fp32 from rank 0")) << outcome.what;
      EXPECT_TRUE(contains(outcome.what, "broadcast of 1 fp32 from rank 1")) << outcome.what;
    }
  }
}

TEST(FailureTest, AThrowingTaskAbortsThePeers) {
  for (int size : kSizes) {
    Groups groups = make_groups(size, milliseconds(60000));
    std::vector<std::thread> threads;
    std::vector<Outcome> outcomes(groups.size());
    const auto begin = steady_clock::now();
    for (std::size_t r = 0; r < groups.size(); ++r) {
      threads.emplace_back([&, r] {
        ProcessGroup& group = *groups[r];
        const auto stream = device_under_test().create_stream(
            {.on_error = [&](std::string_view what) { group.abort(concat("rank 0: ", what)); }});
        Vector<float> data(10);
        group.barrier(*stream);
        if (r == 0) stream->submit({.name = "bad"}, [] { fail(ErrorCode::kIo, "disk full"); });
        group.all_reduce(view_of(data), *stream);
        try {
          stream->synchronize();
        } catch (const Error& error) {
          outcomes[r] = {.code = error.code(), .what = error.what()};
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_LT(steady_clock::now() - begin, kPatience);
    EXPECT_EQ(outcomes[0].code, ErrorCode::kIo);
    for (std::size_t r = 1; r < outcomes.size(); ++r) {
      EXPECT_EQ(outcomes[r].code, ErrorCode::kAborted);
      EXPECT_TRUE(contains(outcomes[r].what, "rank 0: disk full")) << outcomes[r].what;
    }
  }
}

TEST(FailureTest, AbortReachesPendingAndFutureOperationsOfTheWholeFamily) {
  Groups groups = make_groups(3, milliseconds(60000));
  std::atomic<int> split{0};
  const auto begin = steady_clock::now();
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    const auto pair = c.group.split(c.rank() == 2 ? 1 : 0, 0);
    ++split;
    if (c.rank() == 2) {
      while (split != 3) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(20));  // rank 0 is asleep in its recv by now
      pair->abort("enough");                          // a group that the others are not in
      pair->abort("too late");
    } else if (c.rank() == 0) {
      Vector<float> data(5);
      pair->recv(view_of(data), 1, c.stream);
      EXPECT_THROW(c.stream.synchronize(), Error);
    } else {
      // A host operation waits too.
      try {
        c.group.split(0, 0);
        ADD_FAILURE() << "did not throw";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kAborted);
        EXPECT_TRUE(contains(error.what(), "enough")) << error.what();
      }
    }
    c.group.barrier(c.second_stream);
    c.second_stream.synchronize();
  });
  EXPECT_LT(steady_clock::now() - begin, kPatience);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, ErrorCode::kAborted);
    EXPECT_TRUE(contains(outcome.what, "enough")) << outcome.what;
  }
}

TEST(FailureTest, SplitTimesOutAndNamesTheAbsent) {
  Groups groups = make_groups(3, kTimeout);
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    if (c.rank() == 1) c.group.split(0, 0);
  });
  EXPECT_EQ(outcomes[1].code, ErrorCode::kTimeout);
  EXPECT_TRUE(contains(outcomes[1].what, "ranks 0, 2")) << outcomes[1].what;
}

TEST(FailureTest, DifferentOperationsAreNotMixed) {
  Groups groups = make_groups(3, milliseconds(60000));
  const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
    Vector<float> part(c.rank() == 1 ? 11 : 10);
    Vector<float> whole(part.size() * 3);
    c.group.all_gather(view_of(part), view_of(whole), c.stream);
    c.stream.synchronize();
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.code.has_value());
    EXPECT_TRUE(contains(outcome.what, "10 fp32")) << outcome.what;
    EXPECT_TRUE(contains(outcome.what, "11 fp32")) << outcome.what;
  }
}

TEST(FailureTest, AMessageThatItsReceiverDoesNotExpectIsNamed) {
  for (const bool other_dtype : {false, true}) {
    Groups groups = make_groups(2, milliseconds(60000));
    const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
      Vector<float> sent(5);
      Vector<std::int32_t> as_long(4);
      Vector<float> received(4);
      if (c.rank() == 0) c.group.recv(view_of(received), 1, c.stream);
      if (c.rank() == 1) {
        c.group.send(other_dtype ? view_of(as_long) : view_of(sent), 0, c.stream);
      }
      c.stream.synchronize();
    });
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.code.has_value());
      EXPECT_TRUE(contains(outcome.what, "rank 0 issued recv of 4 fp32")) << outcome.what;
      EXPECT_TRUE(contains(outcome.what, other_dtype ? "rank 1 issued send of 4 int32"
                                                     : "rank 1 issued send of 5 fp32"))
          << outcome.what;
    }
  }
}

// The buffers of a rank that fails die at once: ThreadSanitizer sees a peer that still reads them.
// The root of a broadcast has nothing to do but wait while the others copy, so aborting then finds
// it ready to leave.
TEST(FailureTest, PeersDoNotReadBuffersOfARankThatHasLeft) {
  constexpr std::int64_t kNumel = 4 << 20;
  int aborted = 0;
  for (int round = 0; round < 20; ++round) {
    Groups groups = make_groups(3, milliseconds(60000));
    std::atomic<bool> copying{false};
    std::thread saboteur([&] {
      while (!copying) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      groups[0]->abort("sabotage");
    });
    const std::vector<Outcome> outcomes = run_ranks(groups, [&](RankContext c) {
      Vector<float> data(kNumel);
      c.group.barrier(c.stream);
      c.stream.submit({.name = "signal"}, [&] { copying = true; });
      // Where the host issues ahead of a GPU, only a rank that is late keeps the root from leaving.
      if (testing_cuda() && c.rank() == 2) std::this_thread::sleep_for(milliseconds(3));
      c.group.broadcast(view_of(data), 0, c.stream);
      try {
        c.stream.synchronize();
      } catch (const Error&) {
        data[kNumel - 1] = 1.0F;  // it is ours again
        throw;
      }
    });
    saboteur.join();
    if (outcomes[0].code.has_value()) ++aborted;
  }
  EXPECT_GT(aborted, 0);  // or the test has tested nothing
}

}  // namespace
}  // namespace tessera
