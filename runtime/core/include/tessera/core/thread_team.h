#pragma once

// [Note: teams of threads] A kernel divides its work among the thread that runs it and the helpers
// of that thread. Helpers belong to one thread, start with the first work that needs them, wait
// between two pieces of work as described in spin_wait.h, and end with their thread. They are not
// OpenMP's: its threads keep their cores while they wait (milliseconds, as long as the process has
// no more of them than cores), so that two programs on one machine took ten times as long as one.

namespace tessera {

/// Among how many threads work that is called from this thread may be divided, itself included: 1
/// inside of on_team; otherwise what a TeamLimit says; else OMP_NUM_THREADS, else the cores.
int team_threads();

/// While it lives, team_threads() of the thread that made it is `threads` >= 1.
class TeamLimit {
 public:
  explicit TeamLimit(int threads);
  ~TeamLimit();
  TeamLimit(const TeamLimit&) = delete;
  TeamLimit& operator=(const TeamLimit&) = delete;

 private:
  int before_;
};

namespace detail {
using TeamPart = void (*)(const void* body, int thread);
void run_on_team(int threads, TeamPart part, const void* body);
}  // namespace detail

/// Calls body(thread) for each `thread` in [0, threads), at the same time: 0 on the calling thread,
/// the others on its helpers. `threads` >= 1 is at most team_threads(). Inside of the calls
/// team_threads() is 1, and libraries that use OpenMP (oneDNN) use one thread, too.
///
/// Returns when all calls have; of exceptions, that of the smallest `thread` is thrown. Throws
/// Error{kUnavailable} if a helper cannot be started; then nothing was called.
template <typename Body>
void on_team(int threads, const Body& body) {
  detail::run_on_team(
      threads, [](const void* b, int thread) { (*static_cast<const Body*>(b))(thread); }, &body);
}

}  // namespace tessera
