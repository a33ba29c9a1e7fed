#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/core/cpu_device.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/thread_team.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

TEST(CpuStreamTest, RunsInOrderAndSynchronizes) {
  const auto device = make_cpu_device();
  const auto stream = device->create_stream({.name = "compute"});
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) stream->submit({.name = "push"}, [&, i] { order.push_back(i); });
  stream->synchronize();
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(CpuStreamTest, SeveralThreadsSynchronizeWithWhatEachHasSeenSubmitted) {
  const auto device = make_cpu_device();
  for (int round = 0; round < 50; ++round) {
    const auto stream = device->create_stream({.name = "test"});
    std::atomic<int> done{0};
    const auto submit = [&](int tasks) {
      for (int i = 0; i < tasks; ++i) {
        stream->submit({}, [&] {
          std::this_thread::yield();
          ++done;
        });
      }
    };
    submit(40);
    std::jthread other([&] {
      stream->synchronize();
      EXPECT_GE(done, 40);
    });
    submit(60);
    stream->synchronize();
    EXPECT_EQ(done, 100);
  }
}

// It would take the core from a thread that computes.
TEST(CpuStreamTest, AThreadThatSynchronizesIsNotWokenByEachTask) {
  const auto device = make_cpu_device();
  const auto stream = device->create_stream({.name = "test"});
  std::atomic<bool> sleeps{false};
  stream->submit({}, [&] {
    while (!sleeps) std::this_thread::yield();
  });
  for (int i = 0; i < 400; ++i) {
    stream->submit({}, [] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
      while (std::chrono::steady_clock::now() < end) {
      }
    });
  }
  const auto switches = [] {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_nvcsw;
  };
  const auto before = switches();
  sleeps = true;
  stream->synchronize();
  EXPECT_LT(switches() - before, 40);
}

/// Nanoseconds that Linux lets a thread keep its core, by sched_getattr(2): from 6.12 on, else 0.
std::uint64_t slice_of(Stream& stream) {
  std::array<std::uint64_t, 6> attributes{};  // the slice is the fourth word
  long result = -1;
  stream.submit(
      {}, [&] { result = syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0); });
  stream.synchronize();
  EXPECT_EQ(result, 0);
  return attributes[3];
}

// Else a lane that has to start a collective waits until a thread that computes has used up its
// slice, and with it the ranks that wait for this one.
TEST(CpuStreamTest, TheThreadOfAnUrgentStreamHasAShortSlice) {
  const auto device = make_cpu_device();
  const auto normal = device->create_stream({.name = "normal"});
  const auto urgent =
      device->create_stream({.name = "urgent", .priority = StreamPriority::kUrgent});
  const std::uint64_t kept = slice_of(*normal);
  EXPECT_EQ(slice_of(*urgent), std::min<std::uint64_t>(kept, 100'000)) << "0: before Linux 6.12";
}

TEST(CpuStreamTest, WaitOrdersStreamsWithoutBlockingTheHost) {
  const auto device = make_cpu_device();
  const auto a = device->create_stream({.name = "a"});
  const auto b = device->create_stream({.name = "b"});
  std::atomic<bool> release{false};
  int value = 0;  // not atomic: ThreadSanitizer sees a missing edge
  a->submit({.name = "slow"}, [&] {
    while (!release) std::this_thread::yield();
    value = 1;
  });
  b->wait(a->record());  // returns although `a` cannot have got here
  int seen = 0;
  b->submit({.name = "read"}, [&] { seen = value; });
  release = true;
  b->synchronize();
  EXPECT_EQ(seen, 1);
}

/// It would run behind tasks that need its result, or wait for itself.
TEST(CpuStreamTest, ATaskMayNotUseItsOwnStream) {
  const auto device = make_cpu_device();
  using Call = void (*)(Stream&);
  const std::array<std::pair<const char*, Call>, 5> calls{
      {{"submit", [](Stream& s) { s.submit({}, [] {}); }},
       {"submit", [](Stream& s) { s.copy(nullptr, nullptr, 0); }},
       {"record", [](Stream& s) { s.record(); }},
       {"wait", [](Stream& s) { s.wait(Event()); }},
       {"synchronize", [](Stream& s) { s.synchronize(); }}}};
  for (const auto& [name, call] : calls) {
    const auto stream = device->create_stream({.name = "compute"});
    stream->submit({}, [&stream, call = call] { call(*stream); });
    try {
      stream->synchronize();
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(concat("Stream::", name)));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("compute at once"));
    }
  }
}

TEST(CpuStreamTest, TheDestructorDrains) {
  const auto device = make_cpu_device();
  int ran = 0;
  {
    const auto stream = device->create_stream({.name = "short"});
    for (int i = 0; i < 100; ++i) stream->submit({.name = "count"}, [&] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

TEST(CpuStreamTest, WhatATaskHoldsIsGoneWhenALaterEventCompletes) {
  const auto device = make_cpu_device();
  const auto stream = device->create_stream({.name = "hold"});
  auto held = std::make_shared<int>(1);
  stream->submit({.name = "hold"}, [held] {});
  stream->synchronize();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(CpuStreamTest, AFailureDropsLaterTasksButNoWaiterHangs) {
  const auto device = make_cpu_device();
  std::atomic<int> errors{0};
  std::string reported;
  const auto bad = device->create_stream({.name = "bad", .on_error = [&](std::string_view what) {
                                            ++errors;
                                            reported = what;
                                          }});
  const auto good = device->create_stream({.name = "good"});
  std::atomic<bool> dropped{true};
  bad->submit({.name = "throw"}, [] { fail(ErrorCode::kIo, "disk"); });
  bad->submit({.name = "dropped"}, [&] {
    dropped = false;
    fail(ErrorCode::kIo, "second");
  });
  good->wait(bad->record());
  bool ran = false;
  good->submit({.name = "after"}, [&] { ran = true; });
  good->synchronize();
  EXPECT_TRUE(ran);
  bad->wait(good->record());
  for (int i = 0; i < 2; ++i) {
    try {
      bad->synchronize();
      FAIL() << "did not throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_STREQ(error.what(), "disk");
    }
  }
  EXPECT_TRUE(dropped);
  EXPECT_EQ(errors, 1);
  EXPECT_EQ(reported, "disk");
}

TEST(CpuStreamTest, AFailedStreamStillWaitsBeforeItsEvents) {
  const auto device = make_cpu_device();
  const auto slow = device->create_stream({.name = "slow"});
  const auto bad = device->create_stream({.name = "bad"});
  int value = 0;
  slow->submit({.name = "sleep"}, [&] {
    std::this_thread::sleep_for(milliseconds(20));
    value = 1;
  });
  bad->submit({.name = "throw"}, [] { fail(ErrorCode::kInternal, "bad"); });
  bad->wait(slow->record());
  EXPECT_THROW(bad->synchronize(), Error);
  EXPECT_EQ(value, 1);  // so whatever `slow` uses may be freed now
}

TEST(CpuStreamTest, KernelsGetTheThreadsOfTheirStream) {
  const auto device = make_cpu_device();
  for (int threads : {1, 2, 3}) {
    const auto stream = device->create_stream({.threads = threads});
    int seen = 0;
    stream->submit({.name = "ask"}, [&] { seen = team_threads(); });
    stream->synchronize();
    EXPECT_EQ(seen, threads);
  }
  EXPECT_THROW(device->create_stream({.threads = 0}), Error);
}

TEST(CpuStreamTest, HooksSeeEveryTaskInOrder) {
  const auto device = make_cpu_device();
  int before = 0;
  std::vector<std::string> names;
  double last_end = 0.0;
  const auto stream = device->create_stream({.before_task = [&] { ++before; },
                                             .on_span =
                                                 [&](const Work& work, double begin, double end) {
                                                   names.emplace_back(work.name);
                                                   EXPECT_LE(last_end, begin);
                                                   EXPECT_LE(begin, end);
                                                   last_end = end;
                                                 }});
  stream->submit({.name = "a"}, [] { std::this_thread::sleep_for(milliseconds(1)); });
  stream->submit({.name = "b"}, [] {});
  stream->record();
  stream->synchronize();
  EXPECT_EQ(before, 2);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b"}));
}

// A ring of streams that hand one plain int on, with random delays: any lost edge is a data race
// for ThreadSanitizer and, with luck, a wrong sum here.
TEST(CpuStreamTest, RandomDelaysDoNotChangeTheOrder) {
  const auto device = make_cpu_device();
  constexpr std::size_t kStreams = 4;
  std::vector<std::unique_ptr<Stream>> streams;
  for (unsigned s = 0; s < kStreams; ++s) {
    auto random = std::make_shared<std::minstd_rand>(s + 1);
    streams.push_back(device->create_stream({.before_task = [random] {
      const auto us = (*random)() % 200;
      if (us > 100) std::this_thread::sleep_for(std::chrono::microseconds(us));
    }}));
  }
  std::int64_t value = 0;
  std::int64_t expected = 0;
  Event last;
  for (std::int64_t i = 0; i < 400; ++i) {
    Stream& stream = *streams[static_cast<std::size_t>(i * i + i / 3) % kStreams];
    stream.wait(last);
    stream.submit({.name = "step"}, [&value, i] { value = value * 31 % 1000003 + i; });
    last = stream.record();
    expected = expected * 31 % 1000003 + i;
  }
  for (const auto& stream : streams) stream->synchronize();
  EXPECT_EQ(value, expected);
}

}  // namespace
}  // namespace tessera
