#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/sharding/groups.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/passes.h"
#include "tessera/sharding/step_plan.h"

// Step plans with one thing changed of what pipeline ranks do together.
namespace tessera::test {

/// What is changed. A partner is the same message on the other rank.
enum class StepMutation : std::uint8_t {
  kDropMessage,
  kDropBoth,     ///< a message and its partner
  kMoveMessage,  ///< to another place in the list
  kMoveBoth,
  kSwapCalls,        ///< two messages of a communicator, on one rank
  kSwapCallsBoth,    ///< the same two on both ranks
  kSwapNeighbours,   ///< a message and the next action
  kCrossMicroSteps,  ///< what two messages of a communicator hold, on one rank
  kCrossMicroStepsBoth,
  kRepeatMessage,
  kPeer,
  kMessageLane,
  kMessageBuffer,
  kCopyLane,  ///< of a pack, an unpack or an add-tied
  kDropWait,
  kAlterWait,
  kDropCopy,    ///< a pack or an unpack
  kDropTied,    ///< an add-tied
  kMoveCopy,    ///< a pack, an unpack or an add-tied
  kSwapPasses,  ///< two micro-steps of a pass through a layer
  kHeader,      ///< one rank's schedule is of other options
  kSwapRanks,   ///< the schedules of two ranks
};
inline constexpr std::array<std::string_view, 22> kStepMutationNames{
    "drop a message",
    "drop a message and its partner",
    "move a message",
    "move a message and its partner",
    "swap calls on a communicator",
    "swap calls on a communicator, on both ranks",
    "swap a message and the next action",
    "cross two micro-steps",
    "cross two micro-steps on both ranks",
    "repeat a message",
    "peer",
    "lane of a message",
    "buffer of a message",
    "lane of a pack, unpack or add-tied",
    "drop a wait",
    "alter a wait",
    "drop a pack or unpack",
    "drop an add-tied",
    "move a pack, unpack or add-tied",
    "swap two passes",
    "header",
    "swap two ranks"};

/// Makes mutants: a pure function of the seed.
class StepPlanMutator {
 public:
  explicit StepPlanMutator(std::uint32_t seed) : random_(seed) {}

  /// `step` with one change of this kind; nothing if it has nothing to change. Half of those whose
  /// actions are others have the waits that their operands demand, so that it is not their order
  /// alone that is wrong.
  std::optional<StepPlan> mutant(const StepPlan& step, StepMutation kind) {
    step_ = step;
    apply(kind);
    if (step_ == step) return std::nullopt;
    const bool is_of_waits = kind == StepMutation::kDropWait || kind == StepMutation::kAlterWait ||
                             kind == StepMutation::kHeader || kind == StepMutation::kSwapRanks;
    if (!is_of_waits && once_in(2)) {
      for (Schedule& schedule : step_.ranks) schedule = synchronise(std::move(schedule));
    }
    if (step_ == step) return std::nullopt;
    return std::move(step_);
  }

 private:
  /// An action of a rank.
  struct Place {
    int rank = 0;
    int action = 0;
  };
  using Fits = std::function<bool(const Action&)>;

  void apply(StepMutation kind) {
    switch (kind) {
      case StepMutation::kDropMessage:
        return with(is_message, [&](Place place) { drop(place); });
      case StepMutation::kDropBoth:
        return with(is_message, [&](Place place) {
          const std::optional<Place> partner = partner_of(place);
          drop(place);
          if (partner) drop(*partner);
        });
      case StepMutation::kMoveMessage:
        return with(is_message, [&](Place place) { move(place, near(place)); });
      case StepMutation::kMoveBoth:
        return with(is_message, [&](Place place) {
          const std::optional<Place> partner = partner_of(place);
          move(place, near(place));
          if (partner) move(*partner, near(*partner));
        });
      case StepMutation::kSwapCalls:
      case StepMutation::kSwapCallsBoth:
        return with(is_message, [&](Place place) {
          const std::optional<Place> next = next_call(place);
          if (!next) return;
          const std::optional<Place> partner = partner_of(place), behind = partner_of(*next);
          exchange(place, *next);
          if (kind == StepMutation::kSwapCallsBoth && partner && behind) {
            exchange(*partner, *behind);
          }
        });
      case StepMutation::kSwapNeighbours:
        return with(is_message, [&](Place place) {
          move(place, std::min(place.action + 1, last(place.rank)));
        });
      case StepMutation::kCrossMicroSteps:
      case StepMutation::kCrossMicroStepsBoth:
        return with(is_message, [&](Place place) {
          const std::optional<Place> next = next_call(place);
          if (!next) return;
          const std::optional<Place> partner = partner_of(place), behind = partner_of(*next);
          cross(at(place), at(*next));
          if (kind == StepMutation::kCrossMicroStepsBoth && partner && behind) {
            cross(at(*partner), at(*behind));
          }
        });
      case StepMutation::kRepeatMessage:
        return with(is_message, [&](Place place) { repeat(place); });
      case StepMutation::kPeer:
        return with(is_message, [&](Place place) {
          at(place).peer = below(step_.ranks.size() + 1) - (once_in(8) ? 1 : 0);
        });
      case StepMutation::kMessageLane:
        return with(is_message, [&](Place place) {
          at(place).lane = kAllLanes[kLanes - 1 - static_cast<std::size_t>(below(4))];
        });
      case StepMutation::kMessageBuffer:
        return with(is_message, [&](Place place) {
          Action& action = at(place);
          Operand& operand = action.reads.empty() ? action.writes.front() : action.reads.front();
          operand.buffer = buffer_like(of(place.rank), operand.buffer);
        });
      case StepMutation::kCopyLane:
        return with(is_copy_or_sum, [&](Place place) {
          at(place).lane = kAllLanes[static_cast<std::size_t>(below(kLanes))];
        });
      case StepMutation::kDropWait:
      case StepMutation::kAlterWait:
        return change_wait(kind == StepMutation::kDropWait);
      case StepMutation::kDropCopy:
        return with(is_copy, [&](Place place) { drop(place); });
      case StepMutation::kDropTied:
        return with([](const Action& a) { return a.operation == &operations::kAddTied; },
                    [&](Place place) { drop(place); });
      case StepMutation::kMoveCopy:
        return with(is_copy_or_sum, [&](Place place) { move(place, near(place)); });
      case StepMutation::kSwapPasses:
        return with([](const Action& a) { return a.operation->is_pass; },
                    [&](Place place) { swap_passes(place); });
      case StepMutation::kHeader:
        return change_header(of(below(step_.ranks.size())));
      case StepMutation::kSwapRanks: {
        const int rank = below(step_.ranks.size() - 1);
        std::swap(of(rank), of(rank + 1));
        if (once_in(2)) std::swap(of(rank).pipeline.rank, of(rank + 1).pipeline.rank);
        return;
      }
    }
  }

  static bool is_message(const Action& action) { return action.operation->is_message; }
  static bool is_copy(const Action& action) {
    return action.operation == &operations::kPack || action.operation == &operations::kUnpack;
  }
  static bool is_copy_or_sum(const Action& action) {
    return is_copy(action) || action.operation == &operations::kAddTied;
  }
  int below(std::size_t count) { return static_cast<int>(random_() % count); }
  bool once_in(std::size_t times) { return below(times) == 0; }
  Schedule& of(int rank) { return step_.ranks[static_cast<std::size_t>(rank)]; }
  Action& at(Place place) { return of(place.rank).actions[static_cast<std::size_t>(place.action)]; }
  int last(int rank) { return static_cast<int>(of(rank).actions.size()) - 1; }

  /// Does something to any action of any rank that fits.
  void with(const Fits& fits, const std::function<void(Place)>& change) {
    std::vector<Place> found;
    for (int rank = 0; rank < static_cast<int>(step_.ranks.size()); ++rank) {
      for (int a = 0; a <= last(rank); ++a) {
        if (fits(at({rank, a}))) found.push_back({rank, a});
      }
    }
    if (!found.empty()) change(found[static_cast<std::size_t>(below(found.size()))]);
  }

  static PipelinePair pair_of(const Action& message, int rank) {
    return PipelinePair::of(message.lane, rank, message.peer);
  }
  /// The calls of a communicator that one rank makes.
  std::vector<Place> calls(const PipelinePair& pair, int rank) {
    std::vector<Place> found;
    for (int a = 0; a <= last(rank); ++a) {
      if (is_message(at({rank, a})) && pair_of(at({rank, a}), rank) == pair) {
        found.push_back({rank, a});
      }
    }
    return found;
  }
  std::optional<Place> partner_of(Place place) {
    const PipelinePair pair = pair_of(at(place), place.rank);
    const int peer = at(place).peer;
    const std::vector<Place> own = calls(pair, place.rank), others = calls(pair, peer);
    for (std::size_t k = 0; k < std::min(own.size(), others.size()); ++k) {
      if (own[k].action == place.action) return others[k];
    }
    return std::nullopt;
  }
  std::optional<Place> next_call(Place place) {
    for (const Place& call : calls(pair_of(at(place), place.rank), place.rank)) {
      if (call.action > place.action) return call;
    }
    return std::nullopt;
  }
  /// A place a few actions away, or any.
  int near(Place place) {
    const int count = last(place.rank) + 1;
    if (once_in(4)) return below(static_cast<std::size_t>(count));
    return std::clamp(place.action + below(13) - 6, 0, count - 1);
  }

  /// Puts a rank's actions in another order; `order` says where each was. Waits for what is gone,
  /// or comes later now, are dropped.
  static void arrange(Schedule& schedule, const std::vector<int>& order) {
    std::vector<int> now(schedule.actions.size(), -1);
    std::vector<Action> actions;
    for (const int index : order) {
      now[static_cast<std::size_t>(index)] = static_cast<int>(actions.size());
      actions.push_back(schedule.actions[static_cast<std::size_t>(index)]);
    }
    for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
      Action& action = actions[static_cast<std::size_t>(i)];
      for (auto* const waits : {&action.waits, &action.previous_waits}) {
        for (int& wait : *waits) wait = now[static_cast<std::size_t>(wait)];
        std::erase_if(*waits,
                      [&](int wait) { return wait < 0 || (waits == &action.waits && wait >= i); });
      }
    }
    schedule.actions = std::move(actions);
  }
  static std::vector<int> in_order(const Schedule& schedule) {
    std::vector<int> order(schedule.actions.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    return order;
  }
  void drop(Place place) {
    std::vector<int> order = in_order(of(place.rank));
    order.erase(order.begin() + place.action);
    arrange(of(place.rank), order);
  }
  void move(Place place, int to) {
    std::vector<int> order = in_order(of(place.rank));
    order.erase(order.begin() + place.action);
    order.insert(order.begin() + to, place.action);
    arrange(of(place.rank), order);
  }
  void exchange(Place a, Place b) {
    std::vector<int> order = in_order(of(a.rank));
    std::swap(order[static_cast<std::size_t>(a.action)], order[static_cast<std::size_t>(b.action)]);
    arrange(of(a.rank), order);
  }
  void repeat(Place place) {
    Schedule& schedule = of(place.rank);
    const Action again = at(place);
    const int to =
        place.action + 1 + below(static_cast<std::size_t>(last(place.rank) + 1 - place.action));
    for (Action& action : schedule.actions) {
      for (auto* const waits : {&action.waits, &action.previous_waits}) {
        for (int& wait : *waits) wait += wait >= to ? 1 : 0;
      }
    }
    schedule.actions.insert(schedule.actions.begin() + to, again);
  }
  void cross(Action& a, Action& b) {
    const int how = below(3);
    if (how != 0) std::swap(a.micro_step, b.micro_step);
    if (how != 1) std::swap(a.reads, b.reads), std::swap(a.writes, b.writes);
  }
  int buffer_like(const Schedule& schedule, int buffer) {
    std::vector<int> alike;
    for (int b = 0; b < static_cast<int>(schedule.buffers.size()); ++b) {
      if (schedule.role(b) == schedule.role(buffer)) alike.push_back(b);
    }
    return alike[static_cast<std::size_t>(below(alike.size()))];
  }
  void change_wait(bool drops) {
    const bool previous = once_in(3);
    const auto waits = previous ? &Action::previous_waits : &Action::waits;
    with([&](const Action& a) { return !(a.*waits).empty(); },
         [&](Place place) {
           std::vector<int>& list = at(place).*waits;
           const auto which = list.begin() + below(list.size());
           if (drops) {
             list.erase(which);
           } else {
             *which = once_in(2) ? below(static_cast<std::size_t>(last(place.rank)) + 1)
                                 : std::max(*which + (once_in(2) ? 1 : -1), 0);
           }
         });
  }
  /// A pass, and the same one of another micro-step, in each other's place.
  void swap_passes(Place place) {
    for (int a = place.action + 1; a <= last(place.rank); ++a) {
      const Action& other = at({place.rank, a});
      if (other.operation == at(place).operation && other.layer == at(place).layer) {
        return exchange(place, {place.rank, a});
      }
    }
  }
  void change_header(Schedule& schedule) {
    switch (below(6)) {
      case 0:
        schedule.micro_steps += 1;
        return;
      case 1:
        schedule.pipeline.first_layers.back() += once_in(2) ? 1 : -1;
        return;
      case 2:
        schedule.pipeline.order = schedule.pipeline.order == PipelineOrder::kGPipe
                                      ? PipelineOrder::kOneForwardOneBackward
                                      : PipelineOrder::kGPipe;
        return;
      case 3:
        schedule.pipeline.input_numels.back() += once_in(2) ? 1 : -1;
        return;
      case 4:
        schedule.pipeline.rank = below(step_.ranks.size());
        return;
      default:
        schedule.layers.back().name += '2';
        return;
    }
  }

  std::mt19937 random_;
  StepPlan step_;
};

inline constexpr int kStepMutations = static_cast<int>(kStepMutationNames.size());

}  // namespace tessera::test
