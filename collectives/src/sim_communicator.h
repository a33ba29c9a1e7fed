#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collective_call.h"
#include "tessera/collectives/sim_group.h"
#include "tessera/core/error.h"
#include "tessera/core/sim_device.h"

namespace tessera {

/// Why groups were taken down. Outlives them: submitted tasks look at it. Safe from any thread.
class AbortReason {
 public:
  /// The first one counts.
  void set(std::string_view reason) {
    const std::lock_guard lock(mutex_);
    if (!text_) text_.emplace(reason);
  }
  std::optional<std::string> get() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> text_;  // guarded by mutex_
};

/// A communicator of which several ranks are simulated, all driven by one host thread.
class SimCommunicator : public std::enable_shared_from_this<SimCommunicator> {
 public:
  SimCommunicator(std::string name, int size, int present, std::shared_ptr<AbortReason> aborted)
      : name_(std::move(name)), size_(size), present_(present), aborted_(std::move(aborted)) {}

  /// One more simulated rank. Throws Error{kInvalidArgument} if it contradicts those before.
  void join(int rank, int size, int present);
  /// Puts on `stream` that `rank` arrives at the meeting of its next call with others, and waits
  /// for them. Throws Error{kInvalidArgument} if the call does not fit theirs.
  void meet(int rank, const CollectiveCall& call, Stream& stream);

 private:
  /// Ranks whose calls meet, in an order of their own: the two of a call between ranks of more; or
  /// all, as {-1, -1}.
  using Members = std::pair<int, int>;
  struct Side {
    int rank;
    CollectiveCall call;
  };
  struct Meeting {
    Members members;
    std::uint64_t number;
    int size;                   ///< simulated ranks that meet
    std::vector<Side> sides{};  ///< of those that have issued it
  };
  struct Open {
    std::shared_ptr<Meeting> meeting;
    Event all_are_there;
  };
  struct Order {
    std::map<int, std::uint64_t> issued{};  ///< calls, by rank
    std::map<std::uint64_t, Open> open{};   ///< those that not all have issued, by number
  };

  std::optional<Members> members_of(int rank, const CollectiveCall& call) const;
  Open open(const Members& members, std::uint64_t number, SimStream& stream);
  void check_fits(const Meeting& meeting, int rank, const CollectiveCall& call) const;
  std::string place_of(const Meeting& meeting) const;
  std::vector<int> missing_in(const Meeting& meeting) const;
  Error overdue(const Meeting& meeting) const;

  const std::string name_;
  const int size_;
  const int present_;
  const std::shared_ptr<AbortReason> aborted_;
  std::set<int> ranks_;  ///< that have joined
  std::map<Members, Order> orders_;
};

/// The communicators of simulated ranks, by name.
class SimMeetings::Family {
 public:
  std::shared_ptr<SimCommunicator> join(const std::string& name, int rank, int size, int present);
  const std::shared_ptr<AbortReason>& aborted() const { return aborted_; }

 private:
  const std::shared_ptr<AbortReason> aborted_ = std::make_shared<AbortReason>();
  std::map<std::string, std::shared_ptr<SimCommunicator>> communicators_;
};

}  // namespace tessera
