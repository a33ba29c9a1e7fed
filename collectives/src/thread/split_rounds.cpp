#include "thread/split_rounds.h"

#include <string>
#include <utility>

#include "tessera/core/error.h"
#include "thread/thread_group_state.h"

namespace tessera {

SplitRounds::SplitRounds(int size, std::chrono::milliseconds timeout,
                         std::shared_ptr<Family> family)
    : size_(size), timeout_(timeout), family_(std::move(family)) {}

void SplitRounds::wake() {
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

ThreadGroupEnd SplitRounds::join(int rank, std::uint64_t number, SplitSeat seat) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  std::unique_lock lock(mutex_);
  Round& round = rounds_[number];
  round.seats.resize(static_cast<std::size_t>(size_));
  round.seats[static_cast<std::size_t>(rank)] = seat;
  if (++round.arrived == size_) {
    round.ends = make_ends(round);
    changed_.notify_all();
  }
  changed_.wait_until(lock, deadline, [&] {
    return !round.ends.empty() || family_->aborted().load(std::memory_order_seq_cst);
  });
  if (round.ends.empty()) {
    const Round seen = round;
    lock.unlock();  // aborting wakes this group, which takes the lock
    fail_round(rank, seen);
  }
  ThreadGroupEnd end = std::move(round.ends[static_cast<std::size_t>(rank)]);
  if (++round.left == size_) rounds_.erase(number);
  return end;
}

std::vector<ThreadGroupEnd> SplitRounds::make_ends(const Round& round) const {
  std::vector<SplitSeat> seats;
  for (const std::optional<SplitSeat>& seat : round.seats) seats.push_back(*seat);
  std::vector<ThreadGroupEnd> ends(seats.size());
  for (const std::vector<int>& ranks : split_groups(seats)) {
    const auto state = make_thread_group_state(static_cast<int>(ranks.size()), timeout_, family_);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      ends[static_cast<std::size_t>(ranks[i])] = {.state = state, .rank = static_cast<int>(i)};
    }
  }
  return ends;
}

void SplitRounds::fail_round(int rank, const Round& round) {
  if (family_->aborted().load(std::memory_order_seq_cst)) {
    fail(ErrorCode::kAborted, "split on rank ", rank, " of ", size_, ": ", family_->reason());
  }
  std::vector<int> missing;
  for (int other = 0; other < size_; ++other) {
    if (!round.seats[static_cast<std::size_t>(other)]) missing.push_back(other);
  }
  const std::string what = concat("split on rank ", rank, " of ", size_, ": ", list_ranks(missing),
                                  " did not arrive within ", timeout_.count(), " ms");
  family_->abort(what);
  throw Error(ErrorCode::kTimeout, what);
}

}  // namespace tessera
