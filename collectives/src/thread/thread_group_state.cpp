#include "thread/thread_group_state.h"

#include <utility>

#include "tessera/core/spin_wait.h"

namespace tessera {

ThreadGroupState::ThreadGroupState(int size, std::chrono::milliseconds timeout,
                                   std::shared_ptr<Family> family)
    : size_(size),
      timeout_(timeout),
      yield_after_(size <= family->cores() ? kOwnCore : kSharedCore),
      family_(std::move(family)),
      members_(std::make_unique<Member[]>(static_cast<std::size_t>(size))),
      channels_(std::make_unique<Channel[]>(static_cast<std::size_t>(size * size))),
      splits_(size, timeout, family_) {}

void ThreadGroupState::wake_all() {
  for (int rank = 0; rank < size_; ++rank) {
    member(rank).progress.wake();
    member(rank).finished.wake();
    for (int peer = 0; peer < size_; ++peer) {
      channel(rank, peer).posted.wake();
      channel(rank, peer).taken.wake();
    }
  }
  splits_.wake();
}

std::shared_ptr<ThreadGroupState> make_thread_group_state(int size,
                                                          std::chrono::milliseconds timeout,
                                                          std::shared_ptr<Family> family) {
  auto state = std::make_shared<ThreadGroupState>(size, timeout, std::move(family));
  state->family().add(state);
  return state;
}

}  // namespace tessera
