#include "../../kernels/src/cpu/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::int64_t kCount = 101;

/// Visits every element, and fails at those of `bad`; what parallel_for throws then.
std::string message_of(const std::vector<std::int64_t>& bad, std::vector<int>& visits) {
  try {
    cpu::parallel_for(kCount, 3, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      for (const std::int64_t b : bad) {
        if (begin <= b && b < end) fail(ErrorCode::kInternal, "element ", b);
      }
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  return "nothing";
}

TEST(ParallelForErrors, TheFirstRangesExceptionIsThrownWhenAllAreDone) {
  for (const int threads : {1, 2, 5}) {
    SCOPED_TRACE(concat(threads, " threads"));
    const TeamLimit limit(threads);
    std::vector<int> visits(kCount);
    EXPECT_EQ(message_of({}, visits), "nothing");
    for (const std::int64_t bad : {std::int64_t{0}, kCount / 2, kCount - 1}) {
      EXPECT_EQ(message_of({bad}, visits), concat("element ", bad));
    }
    EXPECT_EQ(message_of({0, kCount / 2, kCount - 1}, visits), "element 0");
    EXPECT_EQ(visits, std::vector<int>(kCount, 5));
  }
}

// Ranges of a thread that is slow are taken by others: the one with the first element waits for
// all others.
TEST(ParallelForOnTheCpu, ASlowThreadKeepsNobodyWaiting) {
  for (const int threads : {2, 3}) {
    const TeamLimit limit(threads);
    std::atomic<std::int64_t> visited{0};
    std::int64_t first = 0;
    cpu::parallel_for(kCount, 1, [&](std::int64_t begin, std::int64_t end) {
      if (begin > 0) {
        visited += end - begin;
        return;
      }
      first = end;
      const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(2);
      while (visited + end < kCount && std::chrono::steady_clock::now() < patience) {
        std::this_thread::yield();
      }
    });
    EXPECT_EQ(visited + first, kCount);
    EXPECT_LT(first, kCount / threads) << "a thread has several ranges";
  }
}

}  // namespace
}  // namespace tessera
