#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <new>
#include <string>

#include "shortage/failing_allocations.h"
#include "support/tiny_model.h"
#include "tessera/collectives/listening_socket.h"
#include "tessera/collectives/world.h"
#include "tessera/core/error.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/trainer.h"

// Whichever allocation fails, on whatever thread: the run ends, with an error that says that memory
// is short.
namespace tessera {
namespace {

using test::tiny_model;
using test::TinyData;

constexpr std::int64_t kNone = 0;
constexpr std::int64_t kAll = std::int64_t{1} << 61U;

/// Of the allocations of a run; all of them would take an hour.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t kPoints = 25;
#else
constexpr std::int64_t kPoints = 100;
#endif

/// Runs `body` in a process of its own; what it returns comes back, and after that how the process
/// has died or that it hangs, if so.
std::string in_child(const std::function<std::string()>& body) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = [&]() noexcept { return body(); }();
    _exit(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  pollfd end{.fd = ends[0], .events = POLLIN, .revents = 0};
  std::array<char, 512> part{};
  while (true) {
    constexpr int kPatienceMs = 60000;
    if (poll(&end, 1, kPatienceMs) == 0) {
      text += " (it hangs)";
      kill(child, SIGKILL);
      break;
    }
    const ssize_t bytes = read(ends[0], part.data(), part.size());
    if (bytes <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(bytes));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? text + " (" + strsignal(WTERMSIG(status)) + ")" : text;
}

TrainerOptions options_for(const std::string& strategy) {
  TrainerOptions options;
  options.strategy = strategy;
  options.ranks = 2;
  options.steps = 2;
  options.micro_batch = 2;
  options.accumulate = 2;
  options.optimizer.clip_norm = 0.7;
  options.threads_per_rank = 1;
  options.timeout = std::chrono::seconds(20);
  return options;
}

/// "" if `train` does, else why not: "out_of_memory: ...".
std::string failure_of(const std::function<void()>& train) {
  try {
    train();
    return "";
  } catch (const Error& error) {
    test::fail_allocations(kNone, kNone);
    return concat(to_string(error.code()), ": ", error.what());
  } catch (const std::bad_alloc&) {
    test::fail_allocations(kNone, kNone);
    return "out_of_memory";
  }
}

/// Whether `failure` says so. The thread that moves messages is no rank: ranks hear of its failure.
bool is_shortage(const std::string& failure) {
  return failure.rfind("out_of_memory", 0) == 0 ||
         failure.find("no memory for messages") != std::string::npos;
}

/// Two ranks of one process.
std::string train_threads(const TrainerOptions& options) {
  return failure_of([&] {
    const Model model = tiny_model();
    const TinyData data;
    Trainer(model, data, options).train();
  });
}

/// A rank of each of two processes, which are both in this one. One of them says that memory is
/// short; the other one says that, or that it has heard of a failure.
std::string train_processes(const TrainerOptions& options, bool apart) {
  std::array<std::string, 2> failures;
  const auto train = [&](int process, int listener, int port) {
    const Model model = tiny_model();
    const TinyData data;
    TrainerOptions own = options;
    own.world = make_socket_world({.process = process,
                                   .processes = 2,
                                   .address = "127.0.0.1",
                                   .port = port,
                                   .listener = process == 0 ? listener : -1,
                                   .patience = std::chrono::seconds(3)},
                                  {.timeout = options.timeout, .apart = apart});
    Trainer(model, data, own).train();
  };
  const std::string start = failure_of([&] {
    const int listener = listen_at(kLoopback, 0).socket;
    const int port = port_of_listener(listener);
    launch_ranks(2, [&](int process) {
      failures[static_cast<std::size_t>(process)] =
          failure_of([&] { train(process, listener, port); });
    });
  });
  for (const std::string& failure : {start, failures[0], failures[1]}) {
    if (is_shortage(failure)) return failure;
  }
  return start + failures[0] + failures[1];
}

using Train = std::function<std::string()>;

std::int64_t allocations_of(const Train& train) {
  return std::stoll(in_child([&] {
    test::fail_allocations(kNone, kNone);
    EXPECT_EQ(train(), "");
    return std::to_string(test::allocations());
  }));
}

/// In each of `points` runs another allocation fails, and the `failures` - 1 after it.
void expect_clear_errors(const Train& train, std::int64_t failures, std::int64_t points = kPoints) {
  // GCC 12 destroys members of a braced list twice if a later one throws; this is one, made once.
  strategies();
  const std::int64_t all = allocations_of(train);
  ASSERT_GT(all, points);
  int shortages = 0;
  for (std::int64_t i = 0; i < points; ++i) {
    const std::int64_t first = all * i / points;
    const std::string failure = in_child([&] {
      test::fail_allocations(first, failures);
      return train();
    });
    shortages += is_shortage(failure) ? 1 : 0;
    EXPECT_TRUE(failure.empty() || is_shortage(failure)) << "from " << first << ": " << failure;
  }
  EXPECT_GT(shortages, points / 2);
}

class Shortage : public testing::TestWithParam<std::string> {};

TEST_P(Shortage, OfOneAllocationIsAClearError) {
  expect_clear_errors([] { return train_threads(options_for(GetParam())); }, 1);
}

TEST_P(Shortage, OfAFewAllocationsIsAClearError) {
  expect_clear_errors([] { return train_threads(options_for(GetParam())); }, 10);
}

TEST_P(Shortage, OfAllMemoryIsAClearError) {
  expect_clear_errors([] { return train_threads(options_for(GetParam())); }, kAll);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Shortage, testing::Values("no_shard", "full_shard"),
                         [](const auto& strategy) { return strategy.param; });

TEST(ShortageOfProcesses, OnOneMachineIsAClearError) {
  expect_clear_errors([] { return train_processes(options_for("full_shard"), false); }, 1,
                      kPoints / 2);
  expect_clear_errors([] { return train_processes(options_for("full_shard"), false); }, 10,
                      kPoints / 2);
}

TEST(ShortageOfProcesses, OnTwoMachinesIsAClearError) {
  expect_clear_errors([] { return train_processes(options_for("full_shard"), true); }, 1,
                      kPoints / 2);
  expect_clear_errors([] { return train_processes(options_for("full_shard"), true); }, 10,
                      kPoints / 2);
}

}  // namespace
}  // namespace tessera
