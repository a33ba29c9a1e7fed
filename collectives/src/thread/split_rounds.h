#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "split_groups.h"
#include "thread/rendezvous.h"

namespace tessera {

class ThreadGroupState;

/// A rank's place in a group that a split has made.
struct ThreadGroupEnd {
  std::shared_ptr<ThreadGroupState> state;
  int rank = 0;
};

/// Where the ranks of a thread group meet to split it. The n-th call of every rank is round n: the
/// last rank to come makes the new groups, the last to leave clears the round away. A fast rank may
/// be in the next round before a slow one has left the last.
class SplitRounds {
 public:
  SplitRounds(int size, std::chrono::milliseconds timeout, std::shared_ptr<Family> family);

  /// Blocks until every rank has taken its seat in `round`. Throws Error{kTimeout} that names those
  /// who did not come, and then aborts the family, or Error{kAborted}.
  ThreadGroupEnd join(int rank, std::uint64_t round, SplitSeat seat);

  /// Makes whoever waits see that the family was aborted.
  void wake();

 private:
  struct Round {
    std::vector<std::optional<SplitSeat>> seats;  // by rank; empty until it has come
    std::vector<ThreadGroupEnd> ends;             // by rank; none until all have come
    int arrived = 0;
    int left = 0;
  };

  std::vector<ThreadGroupEnd> make_ends(const Round& round) const;
  [[noreturn]] void fail_round(int rank, const Round& round);

  const int size_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Family> family_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Round> rounds_;  // guarded by mutex_
};

}  // namespace tessera
