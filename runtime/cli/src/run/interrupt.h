#pragma once

#include <signal.h>
#include <sys/types.h>

namespace tessera::cli {

/// While one lives, the first Ctrl-C, SIGTERM or SIGUSR1 is remembered and the second kills the
/// process.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that has arrived, or 0.
  int signal() const;
  /// True if all processes of the run get it: it is from a terminal, or from signal_one_of_all.
  bool reaches_all() const;
};

/// The signal that has arrived at an InterruptGuard, or 0; also where there has been none.
int received_signal();

/// While one lives, SIGQUIT is counted and does nothing else.
class QuitGuard {
 public:
  QuitGuard();
  ~QuitGuard();
  QuitGuard(const QuitGuard&) = delete;
  QuitGuard& operator=(const QuitGuard&) = delete;

  /// How many have arrived.
  int count() const;

 private:
  struct sigaction before_ {};
};

/// Sends `process`, one of a run of which all get it, a signal that says so.
void signal_one_of_all(pid_t process, int signal);

}  // namespace tessera::cli
