#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/sharding/operation.h"

// Schedules with one thing changed.
namespace tessera::test {

/// What is changed.
enum class Mutation : std::uint8_t {
  kDropWait,
  kAddWait,
  kMoveWait,      ///< to another action
  kDropPrevious,  ///< a wait for the previous step
  kAddPrevious,
  kMovePrevious,
  kSwap,         ///< an action and the next
  kMove,         ///< an action to another place
  kDrop,         ///< an action
  kRepeat,       ///< an action, later
  kBuffer,       ///< of an operand
  kSlot,         ///< of all operands from a slot's filling to the next
  kUnit,         ///< of an operand
  kSharded,      ///< axes of an operand
  kAdds,         ///< of an operand
  kOperands,     ///< one more, one less, or two in each other's place
  kExchange,     ///< operands of two actions of the same operation
  kAxes,         ///< of a collective
  kLane,         ///< of an action
  kLaneOrdered,  ///< the same, with waits that keep the order
  kLayer,
  kMicroStep,
  kOperation,
};
inline constexpr int kMutations = 23;
inline constexpr std::array<std::string_view, kMutations> kMutationNames{"drop a wait",
                                                                         "add a wait",
                                                                         "move a wait",
                                                                         "drop a previous wait",
                                                                         "add a previous wait",
                                                                         "move a previous wait",
                                                                         "swap",
                                                                         "move",
                                                                         "drop",
                                                                         "repeat",
                                                                         "buffer",
                                                                         "slot",
                                                                         "unit",
                                                                         "sharded",
                                                                         "adds",
                                                                         "operands",
                                                                         "exchange",
                                                                         "axes",
                                                                         "lane",
                                                                         "lane, in order",
                                                                         "layer",
                                                                         "micro-step",
                                                                         "operation"};

/// Makes mutants: a pure function of the seed.
class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  /// `schedule` with one change of this kind; nothing if it has nothing to change, or the change
  /// came to nothing.
  std::optional<Schedule> mutant(const Schedule& schedule, Mutation mutation) {
    s_ = schedule;
    if (s_.actions.empty()) return std::nullopt;
    apply(mutation);
    if (s_ == schedule) return std::nullopt;
    return std::move(s_);
  }
  /// A number below `count`.
  int below(std::size_t count) { return static_cast<int>(random_() % count); }
  bool once_in(std::size_t times) { return below(times) == 0; }

 private:
  void apply(Mutation mutation) {
    switch (mutation) {
      case Mutation::kDropWait:
        return drop_wait(&Action::waits);
      case Mutation::kMoveWait:
        return move_wait(&Action::waits);
      case Mutation::kDropPrevious:
        return drop_wait(&Action::previous_waits);
      case Mutation::kMovePrevious:
        return move_wait(&Action::previous_waits);
      case Mutation::kAddPrevious:
        return at(any(s_.actions)).previous_waits.push_back(any(s_.actions));
      case Mutation::kAddWait: {
        const int index = any(s_.actions);
        const int wait = once_in(8) ? any(s_.actions) : below(static_cast<std::size_t>(index) + 1);
        return at(index).waits.push_back(wait);
      }
      case Mutation::kSwap: {
        const int index = any(s_.actions);
        return reorder(index, std::min(index + 1, last()));
      }
      case Mutation::kMove:
        return reorder(any(s_.actions), any(s_.actions));
      case Mutation::kDrop:
        return drop(any(s_.actions));
      case Mutation::kRepeat:
        return repeat(any(s_.actions));
      case Mutation::kBuffer:
        return change_operand(
            [&](Operand& operand, bool) { operand.buffer = other_buffer(operand); });
      case Mutation::kSlot:
        return change_slot();
      case Mutation::kUnit:
        return change_operand(
            [&](Operand& operand, bool) { operand.unit = below(s_.units.size() + 1) - 1; });
      case Mutation::kSharded:
        return change_operand([&](Operand& operand, bool) { operand.sharded = axes(); });
      case Mutation::kAdds:
        return change_operand([&](Operand& operand, bool writes) {
          if (writes || once_in(8)) operand.adds = !operand.adds;
        });
      case Mutation::kOperands:
        return change_operands();
      case Mutation::kExchange:
        return exchange();
      case Mutation::kAxes:
        return change_action([](const Action& a) { return !a.axes.empty(); },
                             [&](Action& a) { a.axes = axes(); });
      case Mutation::kLane:
        at(any(s_.actions)).lane = lane();
        return;
      case Mutation::kLaneOrdered:
        return change_lane_in_order(any(s_.actions));
      case Mutation::kLayer:
        return change_action([](const Action& a) { return a.layer >= 0; },
                             [&](Action& a) { a.layer = below(s_.layers.size()); });
      case Mutation::kMicroStep:
        return change_action(
            [](const Action& a) { return a.micro_step >= 0; },
            [&](Action& a) { a.micro_step = below(static_cast<std::size_t>(s_.micro_steps) + 1); });
      case Mutation::kOperation:
        at(any(s_.actions)).operation =
            all_operations()[static_cast<std::size_t>(below(all_operations().size()))];
        return;
    }
  }

  template <typename Items>
  int any(const Items& items) {
    return below(items.size());
  }
  Action& at(int index) { return s_.actions[static_cast<std::size_t>(index)]; }
  int last() const { return static_cast<int>(s_.actions.size()) - 1; }
  Lane lane() { return kAllLanes[static_cast<std::size_t>(below(kLanes))]; }
  AxisSet axes() {
    constexpr std::array<AxisSet, 4> kAll{AxisSet{}, AxisSet{Axis::kShard},
                                          AxisSet{Axis::kReplicate},
                                          AxisSet{Axis::kShard, Axis::kReplicate}};
    return kAll[static_cast<std::size_t>(below(kAll.size()))];
  }

  void change_action(const std::function<bool(const Action&)>& fits,
                     const std::function<void(Action&)>& change) {
    std::vector<int> found;
    for (int i = 0; i <= last(); ++i) {
      if (fits(at(i))) found.push_back(i);
    }
    if (!found.empty()) change(at(found[static_cast<std::size_t>(any(found))]));
  }
  void drop_wait(std::vector<int> Action::*waits) {
    change_action([&](const Action& a) { return !(a.*waits).empty(); },
                  [&](Action& a) { (a.*waits).erase((a.*waits).begin() + any(a.*waits)); });
  }
  void move_wait(std::vector<int> Action::*waits) {
    change_action([&](const Action& a) { return !(a.*waits).empty(); },
                  [&](Action& a) {
                    int& wait = (a.*waits)[static_cast<std::size_t>(any(a.*waits))];
                    wait = once_in(2) ? below(s_.actions.size())
                                      : std::max(wait + (once_in(2) ? 1 : -1), 0);
                  });
  }
  void change_operand(const std::function<void(Operand&, bool writes)>& change) {
    Action& action = at(any(s_.actions));
    const std::size_t reads = action.reads.size();
    const auto number = static_cast<std::size_t>(below(reads + action.writes.size()));
    if (number < reads) return change(action.reads[number], false);
    change(action.writes[number - reads], true);
  }

  /// Most often one for the same things.
  int other_buffer(const Operand& operand) {
    for (int tries = 0; tries < 20; ++tries) {
      const int buffer = below(s_.buffers.size());
      if (s_.role(buffer) == s_.role(operand.buffer) || once_in(10)) return buffer;
    }
    return operand.buffer;
  }

  /// Another slot, from an action that fills it until the next that does.
  void change_slot() {
    const auto fills = [&](const Action& action, int buffer) {
      return action.operation != &operations::kReshard &&
             std::ranges::any_of(action.writes, [&](const Operand& operand) {
               return operand.buffer == buffer && !operand.adds;
             });
    };
    int i = any(s_.actions);
    while (i <= last() && !std::ranges::any_of(at(i).writes, [&](const Operand& operand) {
             return s_.buffer(operand).is_slot();
           })) {
      ++i;
    }
    if (i > last()) return;
    const Operand& slot = *std::ranges::find_if(
        at(i).writes, [&](const Operand& operand) { return s_.buffer(operand).is_slot(); });
    const int from = slot.buffer, to = other_buffer(slot);
    for (int begin = i; i <= last() && (i == begin || !fills(at(i), from)); ++i) {
      for (auto* operands : {&at(i).reads, &at(i).writes}) {
        for (Operand& operand : *operands) {
          if (operand.buffer == from) operand.buffer = to;
        }
      }
    }
  }

  void change_operands() {
    Action& action = at(any(s_.actions));
    std::vector<Operand>& operands = once_in(2) ? action.reads : action.writes;
    const int how = below(4);
    if (how == 0 && !operands.empty()) {
      operands.erase(operands.begin() + any(operands));
    } else if (how == 1) {
      const Action& other = at(any(s_.actions));
      const std::vector<Operand>& from = once_in(2) ? other.reads : other.writes;
      if (from.empty()) return;
      operands.insert(operands.begin() + below(operands.size() + 1),
                      from[static_cast<std::size_t>(any(from))]);
    } else if (operands.size() > 1) {
      std::swap(operands[static_cast<std::size_t>(any(operands))],
                operands[static_cast<std::size_t>(any(operands))]);
    }
  }

  void exchange() {
    Action& action = at(any(s_.actions));
    change_action([&](const Action& a) { return a.operation == action.operation; },
                  [&](Action& other) {
                    const bool both = once_in(2);
                    if (both || once_in(2)) std::swap(action.reads, other.reads);
                    if (both || once_in(2)) std::swap(action.writes, other.writes);
                  });
  }

  /// Puts the actions in another order; `order` says where each was. Of waits, those on what is
  /// gone are dropped; half of the time, those on what now comes later, too.
  void arrange(const std::vector<int>& order) {
    std::vector<int> now(s_.actions.size(), -1);
    std::vector<Action> actions;
    for (const int index : order) {
      now[static_cast<std::size_t>(index)] = static_cast<int>(actions.size());
      actions.push_back(at(index));
    }
    const bool backward_only = once_in(2);
    for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
      std::vector<int> waits;
      for (const int wait : actions[static_cast<std::size_t>(i)].waits) {
        if (wait < 0 || wait > last()) continue;
        const int there = now[static_cast<std::size_t>(wait)];
        if (there >= 0 && (there < i || !backward_only)) waits.push_back(there);
      }
      actions[static_cast<std::size_t>(i)].waits = std::move(waits);
      std::vector<int> previous;
      for (const int wait : actions[static_cast<std::size_t>(i)].previous_waits) {
        if (wait < 0 || wait > last()) continue;
        const int there = now[static_cast<std::size_t>(wait)];
        if (there >= 0) previous.push_back(there);
      }
      actions[static_cast<std::size_t>(i)].previous_waits = std::move(previous);
    }
    s_.actions = std::move(actions);
  }
  std::vector<int> in_order() const {
    std::vector<int> order(s_.actions.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    return order;
  }
  void reorder(int from, int to) {
    std::vector<int> order = in_order();
    order.erase(order.begin() + from);
    order.insert(order.begin() + to, from);
    arrange(order);
  }
  void drop(int index) {
    std::vector<int> order = in_order();
    order.erase(order.begin() + index);
    arrange(order);
  }
  void repeat(int index) {
    const Action again = at(index);
    const int to = index + 1 + below(s_.actions.size() - static_cast<std::size_t>(index));
    for (Action& action : s_.actions) {
      for (int& wait : action.waits) wait += wait >= to ? 1 : 0;
      for (int& wait : action.previous_waits) wait += wait >= to ? 1 : 0;
    }
    s_.actions.insert(s_.actions.begin() + to, again);
  }

  void change_lane_in_order(int index) {
    Action& action = at(index);
    const Lane before = action.lane;
    action.lane = lane();
    if (action.lane == before) return;
    for (int i = index - 1; i >= 0; --i) {
      if (at(i).lane != before) continue;
      action.waits.push_back(i);
      break;
    }
    for (int i = index + 1; i <= last(); ++i) {
      if (at(i).lane != before) continue;
      at(i).waits.push_back(index);
      break;
    }
    // From step to step the lane was in order as well.
    for (int i = 0; i <= last(); ++i) {
      if (at(i).lane != before) continue;
      action.previous_waits.push_back(i);
      at(i).previous_waits.push_back(index);
    }
    const auto clean = [&](Action& of) {
      for (auto* waits : {&of.waits, &of.previous_waits}) {
        std::erase_if(*waits, [&](int wait) { return at(wait).lane == of.lane; });
        std::ranges::sort(*waits);
        waits->erase(std::unique(waits->begin(), waits->end()), waits->end());
      }
    };
    for (Action& each : s_.actions) clean(each);
  }

  std::mt19937 random_;
  Schedule s_;
};

}  // namespace tessera::test
