#include "thread/thread_group_state.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {

ThreadGroupState::ThreadGroupState(int size, std::chrono::milliseconds timeout,
                                   std::shared_ptr<Family> family)
    : size_(size),
      timeout_(timeout),
      family_(std::move(family)),
      members_(std::make_unique<Member[]>(static_cast<std::size_t>(size))),
      channels_(std::make_unique<Channel[]>(static_cast<std::size_t>(size * size))) {}

void ThreadGroupState::wake_all() {
  for (int rank = 0; rank < size_; ++rank) {
    member(rank).progress.wake();
    member(rank).finished.wake();
    for (int peer = 0; peer < size_; ++peer) {
      channel(rank, peer).posted.wake();
      channel(rank, peer).taken.wake();
    }
  }
  { const std::lock_guard lock(split_mutex_); }
  split_changed_.notify_all();
}

ThreadGroupState::SplitResult ThreadGroupState::split(int rank, std::uint64_t sequence, int color,
                                                      int key) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  std::unique_lock lock(split_mutex_);
  SplitRound& round = split_rounds_[sequence];
  round.seats.resize(static_cast<std::size_t>(size_));
  round.seats[static_cast<std::size_t>(rank)] = Seat{.color = color, .key = key};
  if (++round.arrived == size_) {
    round.results = assign(round.seats);
    split_changed_.notify_all();
  }
  const auto over = [&] {
    return !round.results.empty() || family_->aborted().load(std::memory_order_seq_cst);
  };
  split_changed_.wait_until(lock, deadline, over);
  if (round.results.empty()) {
    const SplitRound seen = round;
    lock.unlock();  // aborting wakes this group, which takes the lock
    fail_split(rank, seen);
  }
  SplitResult result = std::move(round.results[static_cast<std::size_t>(rank)]);
  if (++round.taken == size_) split_rounds_.erase(sequence);
  return result;
}

std::vector<ThreadGroupState::SplitResult> ThreadGroupState::assign(
    const std::vector<std::optional<Seat>>& seats) const {
  std::map<int, std::vector<std::pair<int, int>>> groups;  // color -> (key, rank)
  for (int rank = 0; rank < size_; ++rank) {
    const Seat& seat = *seats[static_cast<std::size_t>(rank)];
    groups[seat.color].emplace_back(seat.key, rank);
  }
  std::vector<SplitResult> results(seats.size());
  for (auto& [color, members] : groups) {
    std::sort(members.begin(), members.end());
    const auto state = make_thread_group_state(static_cast<int>(members.size()), timeout_, family_);
    int new_rank = 0;
    for (const auto& [key, rank] : members) {
      results[static_cast<std::size_t>(rank)] = {.state = state, .rank = new_rank++};
    }
  }
  return results;
}

void ThreadGroupState::fail_split(int rank, const SplitRound& round) {
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

std::shared_ptr<ThreadGroupState> make_thread_group_state(int size,
                                                          std::chrono::milliseconds timeout,
                                                          std::shared_ptr<Family> family) {
  auto state = std::make_shared<ThreadGroupState>(size, timeout, std::move(family));
  state->family().add(state);
  return state;
}

}  // namespace tessera
