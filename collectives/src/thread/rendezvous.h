#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/usable_cores.h"

namespace tessera {

using SteadyTime = std::chrono::steady_clock::time_point;

/// A count that its owner raises and others wait for.
class Counter {
 public:
  enum class Wait { kReached, kAborted, kTimeout };

  std::uint64_t value() const { return value_.load(std::memory_order_seq_cst); }
  /// Everything written before is visible to whoever sees the new value.
  void raise(std::uint64_t value);
  /// Until value() >= target, `aborted` is set (and `wake` called), or the deadline has passed.
  /// `yield_after`: see spin_until.
  Wait wait(std::uint64_t target, SteadyTime deadline, const std::atomic<bool>& aborted,
            std::chrono::nanoseconds yield_after);
  /// Makes waiters look at their `aborted` again.
  void wake();

 private:
  // On a cache line of its own: neighbours in an array have other owners.
  alignas(64) std::atomic<std::uint64_t> value_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable raised_;
};

/// Something that waits, and has to be told when its family is aborted.
class Wakeable {
 public:
  virtual ~Wakeable() = default;
  virtual void wake_all() = 0;
};

/// A group and everything split from it: they fail together.
class Family {
 public:
  /// Cores that the process could use when the first group was made: before ranks, which split it,
  /// were bound to theirs.
  int cores() const { return cores_; }
  /// `member` is woken by later aborts, as long as it lives.
  void add(std::weak_ptr<Wakeable> member);
  void abort(std::string_view reason) noexcept;
  const std::atomic<bool>& aborted() const { return aborted_; }
  /// Why; empty unless aborted.
  std::string reason() const;

  /// An operation of some group has ended on some rank.
  void note_move() {
    last_moved_.store(std::chrono::steady_clock::now().time_since_epoch().count(),
                      std::memory_order_relaxed);
  }
  /// When the last one has: who waits longer than the timeout is not given up before nothing has
  /// moved for that long, as the last stages of a pipeline while the first ones fill it.
  SteadyTime last_moved() const {
    return SteadyTime(SteadyTime::duration(last_moved_.load(std::memory_order_relaxed)));
  }

 private:
  const int cores_ = usable_cores();
  std::atomic<bool> aborted_{false};
  std::atomic<SteadyTime::rep> last_moved_{0};
  mutable std::mutex mutex_;
  std::string reason_;                            // guarded by mutex_; set with aborted_
  std::vector<std::weak_ptr<Wakeable>> members_;  // guarded by mutex_
};

}  // namespace tessera
