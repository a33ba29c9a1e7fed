#pragma once

#include <chrono>
#include <thread>

namespace tessera {

/// Tries for a moment whether `done()` has become true, before the caller goes to sleep; returns
/// whether it has. Peers of a step arrive within microseconds of each other, and to sleep and be
/// woken costs about ten. There may be more ranks than cores, so the core is offered to others at
/// once. The moment is a time, not a number of tries: where another program wants the core, a
/// single yield may last for milliseconds.
template <typename Done>
bool spin_until(const Done& done) {
  constexpr int kPauses = 16;
  constexpr std::chrono::microseconds kMoment{100};
  for (int i = 0; i < kPauses; ++i) {
    if (done()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  const auto end = std::chrono::steady_clock::now() + kMoment;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace tessera
