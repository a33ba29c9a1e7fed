#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera {

/// A count in memory that several processes map: one raises it, others wait for it. Zeroed memory
/// is a valid counter. It lies on a cache line of its own.
class alignas(64) SharedCounter {
 public:
  std::uint64_t value() const { return value_.load(std::memory_order_seq_cst); }
  /// Everything written before is visible to whoever sees the new value.
  void raise(std::uint64_t value);
  /// Until value() >= target or `patience` is over; returns whether it was reached. Spins for a
  /// moment, then sleeps.
  bool wait(std::uint64_t target, std::chrono::milliseconds patience);

 private:
  std::atomic<std::uint64_t> value_;
  std::atomic<std::uint32_t> sleepers_;
};

}  // namespace tessera
