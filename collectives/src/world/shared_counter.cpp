#include "world/shared_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "tessera/core/spin_wait.h"

namespace tessera {
namespace {

/// A futex is 32 bits wide: the lower half of the count, which changes whenever the count rises.
std::uint32_t* lower_half(std::atomic<std::uint64_t>& value) {
  static_assert(sizeof(value) == 2 * sizeof(std::uint32_t));
  auto* const halves = reinterpret_cast<std::uint32_t*>(&value);
  return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? halves : halves + 1;
}

}  // namespace

void SharedCounter::raise(std::uint64_t value) {
  // Sequentially consistent, as is the other side: either this thread sees the sleeper, or the
  // sleeper sees the value.
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, lower_half(value_), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool SharedCounter::wait(std::uint64_t target, std::chrono::milliseconds patience) {
  const auto reached = [&] { return value_.load(std::memory_order_acquire) >= target; };
  if (spin_until(reached)) return true;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  std::uint64_t seen = value();
  while (seen < target) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) break;
    const timespec sleep{.tv_sec = 0,
                         .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::min<std::chrono::steady_clock::duration>(
                                            left, std::chrono::milliseconds(500)))
                                        .count()};
    syscall(SYS_futex, lower_half(value_), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &sleep,
            nullptr, 0);
    seen = value();
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return seen >= target;
}

}  // namespace tessera
