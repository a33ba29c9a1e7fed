#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collective_call.h"
#include "thread/rendezvous.h"
#include "thread/split_rounds.h"

namespace tessera {

/// State that the ranks of one group share. A rank writes its own member only.
class ThreadGroupState : public Wakeable {
 public:
  /// The part of a rank's call that peers need: one cache line, since it is news to each of them.
  struct alignas(64) Published {
    std::byte* input = nullptr;
    CallSummary summary{};
    int gpu = -1;
  };

  struct Member {
    Counter progress;             ///< see progress_at()
    Counter finished;             ///< operations that this rank has left
    std::atomic<int> reading{0};  ///< how many of its lanes read buffers of peers now
    Published published;          ///< valid from kPublished until every rank is kDone
    /// On GPUs, by stage: passes when the rank's stream has got as far as its host thread.
    std::array<Event, kStages> passed;
    /// GPUs that this rank's has been given access to; its own business.
    std::vector<int> reached_gpus;
  };

  /// One send and its recv on GPUs. Whoever comes second copies.
  struct Transfer {
    struct End {
      CollectiveCall call;
      Event ready;
    };
    std::optional<End> sent, received;
    Event done;  ///< the copy has run; valid when Channel::taken says so
  };

  /// From one rank to another. Both ends count their own calls.
  struct Channel {
    Counter posted;  ///< sends whose buffer may be read
    Counter taken;   ///< of these, how many have been read
    CollectiveCall call;

    std::mutex mutex;
    std::map<std::uint64_t, Transfer> transfers;  ///< that lack an end; guarded by mutex
  };

  ThreadGroupState(int size, std::chrono::milliseconds timeout, std::shared_ptr<Family> family);

  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// How long a rank that waits keeps its core: see spin_until.
  std::chrono::nanoseconds yield_after() const { return yield_after_; }
  Family& family() const { return *family_; }
  Member& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  Channel& channel(int source, int destination) const {
    return channels_[static_cast<std::size_t>(source * size_ + destination)];
  }

  /// See ProcessGroup::set_label. Every rank sets it.
  void set_label(const std::string& label) {
    const std::lock_guard lock(label_mutex_);
    label_ = label;
  }
  std::string label() const {
    const std::lock_guard lock(label_mutex_);
    return label_;
  }

  SplitRounds& splits() { return splits_; }

  void wake_all() override;

 private:
  const int size_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::nanoseconds yield_after_;
  const std::shared_ptr<Family> family_;
  const std::unique_ptr<Member[]> members_;
  const std::unique_ptr<Channel[]> channels_;
  SplitRounds splits_;
  mutable std::mutex label_mutex_;
  std::string label_;  // guarded by label_mutex_
};

/// A group's state, registered with its family.
std::shared_ptr<ThreadGroupState> make_thread_group_state(int size,
                                                          std::chrono::milliseconds timeout,
                                                          std::shared_ptr<Family> family);

}  // namespace tessera
