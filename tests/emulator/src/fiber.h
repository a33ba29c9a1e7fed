#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "sanitizers.h"

namespace tessera::emulator {

/// A stack and the place to go on from. Must not be made or destroyed on another fiber's stack.
class Fiber {
 public:
  /// The OS thread's own stack; others return to it in the end.
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Takes the OS thread's stack as it is now.
  void adopt_current();
  /// Gets a stack, unless it has one. `number` staggers the stacks: if all began at the same place
  /// of a page, the 32 lanes of a warp would fight for the same lines of the cache.
  void make_stack(unsigned number);
  /// Makes the next switch to this fiber call `entry`, which never returns.
  void restart(void (*entry)());

  /// Leaves `from` and goes on in `to`. `finished` promises that nothing returns to `from`.
  static void switch_between(Fiber& from, Fiber& to, bool finished = false);
  /// Signals in the name of this fiber, which is not running and will not again.
  void signal_last(SyncPoint& point, Fiber& current);
  /// To be called first by `entry`.
  static void entered();

  /// How many have a stack of their own, in the whole program.
  static std::size_t count();

 private:
  void* stack_pointer_ = nullptr;
  char* stack_ = nullptr;  ///< lowest usable byte; null: not ours
  const void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
  unsigned number_ = 0;
  void* asan_frames_ = nullptr;
  void* tsan_fiber_ = nullptr;
#if !defined(__x86_64__)
  ucontext_t context_;
#endif
};

}  // namespace tessera::emulator
