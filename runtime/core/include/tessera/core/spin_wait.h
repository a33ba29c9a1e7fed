#pragma once

#include <chrono>
#include <thread>

namespace tessera {

/// How long a waiting thread keeps its core before it offers it to others, where it has a core to
/// itself and where it may not have one.
inline constexpr std::chrono::nanoseconds kOwnCore{2000}, kSharedCore{200};

/// Tries for a moment whether `done()` has become true, before the caller goes to sleep; returns
/// whether it has. Peers of a step arrive within microseconds of each other, and to sleep and be
/// woken costs about ten. Until `yield_after` the core is kept, then it is offered to others. Both
/// are times, not numbers of tries: where another program wants the core, a single yield may last
/// for milliseconds.
template <typename Done>
bool spin_until(const Done& done, std::chrono::nanoseconds yield_after = kSharedCore) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kMoment{100};
  constexpr int kPauses = 3;  // who looks less often disturbs less the one who is to write
  if (done()) return true;
  const Clock::time_point begin = Clock::now();
  do {
    const Clock::duration waited = Clock::now() - begin;
    if (waited >= kMoment) return false;
    if (waited >= yield_after) {
      std::this_thread::yield();
      continue;
    }
#if defined(__x86_64__)
    for (int i = 0; i < kPauses; ++i) __builtin_ia32_pause();
#endif
  } while (!done());
  return true;
}

}  // namespace tessera
