#include "tessera/sharding/passes.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

// [Note: waits]
//
// Two actions conflict if both access a buffer and one of them writes it. The later one must begin
// when the earlier one has finished: by the order of their lane, by a wait, or by a chain of these.
//
// 1. The list stands for two steps, one after the other: actions of the second are numbered on.
//    Actions that conflict two steps apart conflict with what lies between, so two are enough.
// 2. Of the conflicts of an action, the last one of each lane is enough, since a lane runs in
//    order. These, and the action before it on its own lane, are what it *follows*: one action, or
//    none, for each lane. Of a buffer, the last write and the reads since then are enough: what
//    came earlier conflicts with these.
// 3. What has finished when an action has is, of each lane, a beginning of that lane's list. The
//    number at which it ends is the latest among those of the actions that it follows.
// 4. A wait for one of the actions followed is implied if another one has finished after it. What
//    remains has no chain to stand for it: each wait is needed, and no other set of waits fixes
//    the same order (the transitive reduction of an acyclic graph is unique).
//
// Waits of the second step for the first one are the action's `previous_waits`; those within the
// second step are those within the first.
namespace tessera {
namespace {

constexpr int kNothing = -1;

/// By lane: an action, or the last one of several; kNothing: none.
using PerLane = std::array<int, kLanes>;

constexpr PerLane nothing() {
  PerLane none{};
  none.fill(kNothing);
  return none;
}

std::size_t lane_of(const Action& action) { return static_cast<std::size_t>(action.lane); }

/// The last accesses to a buffer.
struct BufferHistory {
  int write = kNothing;       ///< the last one
  PerLane reads = nothing();  ///< since then
};

class Synchronisation {
 public:
  explicit Synchronisation(std::vector<Action>& actions, int buffers)
      : actions_(actions),
        count_(static_cast<int>(actions.size())),
        histories_(static_cast<std::size_t>(buffers)) {
    finished_.reserve(2 * actions.size());
  }

  void run();

 private:
  Action& action(int number) { return actions_[static_cast<std::size_t>(number % count_)]; }
  const PerLane& finished_with(int number) const {
    return finished_[static_cast<std::size_t>(number)];
  }
  BufferHistory& history(const Operand& operand) {
    return histories_[static_cast<std::size_t>(operand.buffer)];
  }
  PerLane followed_by(int number);
  void record(int number);
  bool is_implied(const PerLane& followed, std::size_t lane) const;
  void set_waits(int number, const PerLane& followed);

  std::vector<Action>& actions_;
  const int count_;
  std::vector<BufferHistory> histories_;
  PerLane last_ = nothing();       ///< of each lane so far
  std::vector<PerLane> finished_;  ///< by number of the action: what has finished when it has
};

void Synchronisation::run() {
  for (int number = 0; number < 2 * count_; ++number) {
    const PerLane followed = followed_by(number);
    set_waits(number, followed);
    PerLane finished = nothing();
    for (const int before : followed) {
      if (before == kNothing) continue;
      std::ranges::transform(finished, finished_with(before), finished.begin(),
                             [](int a, int b) { return std::max(a, b); });
    }
    finished[lane_of(action(number))] = number;
    finished_.push_back(finished);
    record(number);
  }
}

/// The actions that one follows: of each lane, its last conflict; of its own, the action before it.
PerLane Synchronisation::followed_by(int number) {
  PerLane followed = nothing();
  const auto follow = [&](int other) {
    if (other == kNothing) return;
    int& last = followed[lane_of(action(other))];
    last = std::max(last, other);
  };
  const Action& now = action(number);
  follow(last_[lane_of(now)]);
  for (const Operand& operand : now.reads) follow(history(operand).write);
  for (const Operand& operand : now.writes) {
    follow(history(operand).write);
    for (const int read : history(operand).reads) follow(read);
  }
  return followed;
}

void Synchronisation::record(int number) {
  const Action& now = action(number);
  last_[lane_of(now)] = number;
  for (const Operand& operand : now.reads) history(operand).reads[lane_of(now)] = number;
  for (const Operand& operand : now.writes) history(operand) = {.write = number};
}

bool Synchronisation::is_implied(const PerLane& followed, std::size_t lane) const {
  for (std::size_t other = 0; other < kLanes; ++other) {
    if (other == lane || followed[other] == kNothing) continue;
    if (finished_with(followed[other])[lane] >= followed[lane]) return true;
  }
  return false;
}

void Synchronisation::set_waits(int number, const PerLane& followed) {
  Action& now = action(number);
  const bool is_first = number < count_;
  std::vector<int>& waits = is_first ? now.waits : now.previous_waits;
  waits.clear();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const int other = followed[lane];
    if (lane == lane_of(now) || other == kNothing || (!is_first && other >= count_)) continue;
    if (!is_implied(followed, lane)) waits.push_back(other);
  }
  std::ranges::sort(waits);
}

}  // namespace

Schedule synchronise(Schedule schedule) {
  Synchronisation(schedule.actions, static_cast<int>(schedule.buffers.size())).run();
  return schedule;
}

}  // namespace tessera
