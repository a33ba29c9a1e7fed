#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/core/thread_team.h"

namespace tessera::cpu {

/// Ranges from `first` to before `end`, of which threads take one after another: their owner from
/// the front, others from the back.
class alignas(64) RangesLeft {
 public:
  void fill(std::int64_t first, std::int64_t end) { left_.store(both(first, end)); }

  /// The next one; -1: none is left.
  std::int64_t take(bool from_front) {
    std::uint64_t left = left_.load(std::memory_order_relaxed);
    while (true) {
      const auto first = static_cast<std::int64_t>(left >> kBits);
      const auto end = static_cast<std::int64_t>(left & kMask);
      if (first >= end) return -1;
      const std::uint64_t rest = from_front ? both(first + 1, end) : both(first, end - 1);
      if (left_.compare_exchange_weak(left, rest, std::memory_order_relaxed)) {
        return from_front ? first : end - 1;
      }
    }
  }

 private:
  static constexpr int kBits = 32;
  static constexpr std::uint64_t kMask = (std::uint64_t{1} << kBits) - 1;

  static std::uint64_t both(std::int64_t first, std::int64_t end) {
    return static_cast<std::uint64_t>(first) << kBits | static_cast<std::uint64_t>(end);
  }

  std::atomic<std::uint64_t> left_{0};
};

/// The exception of the first range that has one.
class FirstError {
 public:
  void take(std::int64_t range, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ && range_ < range) return;
    range_ = range;
    error_ = std::move(error);
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::int64_t range_ = 0;
  std::exception_ptr error_;
};

/// Calls body(begin, end) on disjoint ranges that cover [0, count), on the team of the calling
/// thread. Every range but the last is a multiple of `grain`, and there are at most count / grain
/// of them, rounded up: small work stays on one thread.
///
/// The ranges depend on count, grain and team_threads() only. A kernel whose sums cross ranges must
/// combine them in range order to stay deterministic. A thread begins with neighbouring ranges of
/// its own, the same in each call, and then takes from others: cores that are shared with other
/// programs are not equally fast. Of exceptions, that of the first range that has one is thrown,
/// when all ranges are done.
template <typename Body>
void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  constexpr std::int64_t kRangesOfThread = 4;
  if (count <= 0) return;
  const std::int64_t chunks = (count + grain - 1) / grain;
  const std::int64_t threads = std::min<std::int64_t>(team_threads(), chunks);
  if (threads == 1) return on_team(1, [&](std::int64_t) { body(0, count); });
  const std::int64_t ranges = std::min(chunks, threads * kRangesOfThread);
  FirstError error;
  std::vector<RangesLeft> left(static_cast<std::size_t>(threads));
  for (std::int64_t t = 0; t < threads; ++t) {
    left[static_cast<std::size_t>(t)].fill(ranges * t / threads, ranges * (t + 1) / threads);
  }
  on_team(static_cast<int>(threads), [&](std::int64_t t) {
    for (std::int64_t k = 0; k < threads; ++k) {
      RangesLeft& from = left[static_cast<std::size_t>((t + k) % threads)];
      for (std::int64_t i = from.take(k == 0); i >= 0; i = from.take(k == 0)) {
        try {
          body(chunks * i / ranges * grain, std::min(count, chunks * (i + 1) / ranges * grain));
        } catch (...) {
          error.take(i, std::current_exception());
        }
      }
    }
  });
  error.rethrow();
}

}  // namespace tessera::cpu
