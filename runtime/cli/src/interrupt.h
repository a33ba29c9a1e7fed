#pragma once

namespace tessera::cli {

/// While one lives, the first Ctrl-C or SIGTERM is remembered and the second kills the process.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that has arrived, or 0.
  int signal() const;
  /// True if it is from a terminal, or from who has started this process: those signal all
  /// processes of a run. False if somebody has chosen this one.
  bool reaches_all() const;
};

}  // namespace tessera::cli
