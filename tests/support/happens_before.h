#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/sharding/schedule.h"

// What the order of a schedule's actions is, worked out the long way: by all pairs of them. It
// shares nothing with synchronise() and validate(), which are tested by it.
namespace tessera::test {

/// Two actions, by number: those of a second step that follows are numbered on. The earlier first.
using ActionPair = std::pair<int, int>;

/// Of two steps, one after the other: for each action, all that are over when it begins.
class HappensBefore {
 public:
  /// The order that lanes and these pairs fix.
  HappensBefore(const Schedule& schedule, const std::vector<ActionPair>& pairs)
      : count_(2 * schedule.actions.size()), before_(count_, Row((count_ + 63) / 64)) {
    std::vector<std::vector<int>> follows(count_);
    for (const auto& [earlier, later] : pairs) {
      follows[static_cast<std::size_t>(later)].push_back(earlier);
    }
    std::vector<int> last(kLanes, -1);
    for (std::size_t i = 0; i < count_; ++i) {
      const Action& action = schedule.actions[i % schedule.actions.size()];
      int& of_lane = last[static_cast<std::size_t>(action.lane)];
      if (of_lane >= 0) follows[i].push_back(of_lane);
      of_lane = static_cast<int>(i);
      for (const int earlier : follows[i]) {
        const Row& over = before_[static_cast<std::size_t>(earlier)];
        for (std::size_t w = 0; w < over.size(); ++w) before_[i][w] |= over[w];
        before_[i][static_cast<std::size_t>(earlier) / 64] |= std::uint64_t{1} << earlier % 64;
      }
    }
  }

  bool orders(const ActionPair& pair) const {
    const Row& over = before_[static_cast<std::size_t>(pair.second)];
    return (over[static_cast<std::size_t>(pair.first) / 64] >> pair.first % 64 & 1) != 0;
  }
  bool operator==(const HappensBefore& other) const { return before_ == other.before_; }

 private:
  using Row = std::vector<std::uint64_t>;  ///< a bit for each action

  std::size_t count_;
  std::vector<Row> before_;
};

/// The waits of two steps.
inline std::vector<ActionPair> pairs_of_waits(const Schedule& schedule) {
  const int count = static_cast<int>(schedule.actions.size());
  std::vector<ActionPair> pairs;
  for (int i = 0; i < count; ++i) {
    const Action& action = schedule.actions[static_cast<std::size_t>(i)];
    for (const int wait : action.waits) {
      pairs.emplace_back(wait, i);
      pairs.emplace_back(count + wait, count + i);
    }
    for (const int wait : action.previous_waits) pairs.emplace_back(wait, count + i);
  }
  return pairs;
}

inline bool share_a_buffer(const std::vector<Operand>& some, const std::vector<Operand>& others) {
  for (const Operand& a : some) {
    for (const Operand& b : others) {
      if (a.buffer == b.buffer) return true;
    }
  }
  return false;
}

/// All pairs of two steps that access the same buffer, where one of them writes it.
inline std::vector<ActionPair> conflicts_of(const Schedule& schedule) {
  const int count = static_cast<int>(schedule.actions.size());
  std::vector<ActionPair> pairs;
  for (int later = 0; later < 2 * count; ++later) {
    const Action& b = schedule.actions[static_cast<std::size_t>(later % count)];
    for (int earlier = 0; earlier < later; ++earlier) {
      const Action& a = schedule.actions[static_cast<std::size_t>(earlier % count)];
      if (share_a_buffer(a.writes, b.reads) || share_a_buffer(a.writes, b.writes) ||
          share_a_buffer(a.reads, b.writes)) {
        pairs.emplace_back(earlier, later);
      }
    }
  }
  return pairs;
}

/// The conflicts that lanes and waits leave in any order.
inline std::vector<ActionPair> races_of(const Schedule& schedule,
                                        const std::vector<ActionPair>& conflicts) {
  const HappensBefore order(schedule, pairs_of_waits(schedule));
  std::vector<ActionPair> races;
  for (const ActionPair& pair : conflicts) {
    if (!order.orders(pair)) races.push_back(pair);
  }
  return races;
}

}  // namespace tessera::test
