#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "planning.h"

namespace tessera {
namespace {

/// The actions of a schedule, and what has finished when each of them has.
class ActionList {
 public:
  explicit ActionList(std::vector<Action>& actions) : actions_(actions) {}

  /// Appends an action; of `waits` (-1: none), keeps those that lane order and other waits do not
  /// imply. Its index.
  int push(Action action, std::vector<int> waits);
  /// The last action of a lane so far; -1: none.
  int last(Lane lane) const { return last_[static_cast<std::size_t>(lane)]; }

 private:
  std::vector<Action>& actions_;
  std::vector<std::array<int, kLanes>> clocks_;  ///< per action: last action of each lane before it
  std::array<int, kLanes> last_{-1, -1, -1};
};

int ActionList::push(Action action, std::vector<int> waits) {
  const auto lane = static_cast<std::size_t>(action.lane());
  const int index = static_cast<int>(actions_.size());
  std::array<int, kLanes> clock{-1, -1, -1};
  if (last_[lane] >= 0) clock = clocks_[static_cast<std::size_t>(last_[lane])];
  std::ranges::sort(waits, std::greater<>());
  for (const int wait : waits) {
    if (wait < 0) continue;
    const auto other = static_cast<std::size_t>(actions_[static_cast<std::size_t>(wait)].lane());
    if (other == lane || clock[other] >= wait) continue;
    action.waits.push_back(wait);
    const auto& theirs = clocks_[static_cast<std::size_t>(wait)];
    for (std::size_t i = 0; i < kLanes; ++i) clock[i] = std::max(clock[i], theirs[i]);
  }
  std::ranges::sort(action.waits);
  clock[lane] = index;
  clocks_.push_back(clock);
  last_[lane] = index;
  actions_.push_back(std::move(action));
  return index;
}

/// By compute action: the residencies that begin, or end, with it.
using Index = std::vector<std::vector<std::size_t>>;

Index index_by(int Residency::*where, const std::vector<Residency>& list, std::size_t computes) {
  Index index(computes);
  for (std::size_t i = 0; i < list.size(); ++i) {
    index[static_cast<std::size_t>(list[i].*where)].push_back(i);
  }
  return index;
}

class Emission {
 public:
  Emission(Schedule& schedule, const std::vector<Compute>& computes,
           const std::vector<Residency>& parameters, const std::vector<Residency>& gradients)
      : schedule_(schedule),
        computes_(computes),
        parameters_(parameters),
        gradients_(gradients),
        all_axes_(ShardNesting(schedule.mesh, schedule.placement).all_axes()),
        actions_(schedule.actions),
        parameter_released_by_(schedule.parameter_slots.size(), -1),
        gradient_released_by_(schedule.gradient_slots.size(), -1) {}

  void run();

 private:
  void emit_unshard(const Residency& parameters);
  void emit_compute(std::size_t c);
  void end_gradient(const Residency& gradient);
  void finish_gradient(int unit);
  void emit_updates();

  bool reduces_by_rank() const { return schedule_.reduction_order == ReductionOrder::kRank; }
  AxisSet sent_axes() const;

  Schedule& schedule_;
  const std::vector<Compute>& computes_;
  const std::vector<Residency>& parameters_;
  const std::vector<Residency>& gradients_;
  const AxisSet all_axes_;
  const Index parameters_begin_ = index_by(&Residency::first, parameters_, computes_.size());
  const Index parameters_end_ = index_by(&Residency::last, parameters_, computes_.size());
  const Index gradients_begin_ = index_by(&Residency::first, gradients_, computes_.size());
  const Index gradients_end_ = index_by(&Residency::last, gradients_, computes_.size());
  ActionList actions_;
  std::vector<int> unshards_;               ///< per residency so far: its unshard
  std::vector<int> parameter_released_by_;  ///< per slot: its last reshard
  std::vector<int> gradient_released_by_;   ///< per slot: its last reduction
  int count_items_ = -1;
  int last_loss_ = -1;
};

void Emission::run() {
  count_items_ = actions_.push({.kind = ActionKind::kCountItems}, {});
  for (std::size_t c = 0; c < computes_.size(); ++c) {
    while (unshards_.size() < parameters_.size() &&
           parameters_[unshards_.size()].issue == static_cast<int>(c)) {
      emit_unshard(parameters_[unshards_.size()]);
    }
    emit_compute(c);
  }
  emit_updates();
}

void Emission::emit_unshard(const Residency& parameters) {
  unshards_.push_back(
      actions_.push({.kind = ActionKind::kUnshard,
                     .unit = parameters.unit,
                     .micro_step = parameters.micro_step,
                     .slot = parameters.slot,
                     .axes = schedule_.placement.parameter},
                    {parameter_released_by_[static_cast<std::size_t>(parameters.slot)]}));
}

void Emission::emit_compute(std::size_t c) {
  const Compute& compute = computes_[c];
  std::vector<int> waits;
  for (const std::size_t i : parameters_begin_[c]) waits.push_back(unshards_[i]);
  for (const std::size_t i : gradients_begin_[c]) {
    const int slot = gradients_[i].slot;
    if (slot >= 0) waits.push_back(gradient_released_by_[static_cast<std::size_t>(slot)]);
  }
  if (compute.kind == ActionKind::kLoss) waits.push_back(count_items_);
  const int index = actions_.push(
      {.kind = compute.kind, .layer = compute.layer, .micro_step = compute.micro_step}, waits);
  if (compute.kind == ActionKind::kLoss) last_loss_ = index;
  for (const std::size_t i : parameters_end_[c]) {
    const Residency& r = parameters_[i];
    parameter_released_by_[static_cast<std::size_t>(r.slot)] =
        actions_.push({.kind = ActionKind::kReshard,
                       .unit = r.unit,
                       .micro_step = compute.micro_step,
                       .slot = r.slot},
                      {});
  }
  for (const std::size_t i : gradients_end_[c]) end_gradient(gradients_[i]);
}

/// The axes over which slots are reduced: all at once, or the first of two levels.
AxisSet Emission::sent_axes() const {
  const Placement& placement = schedule_.placement;
  if (reduces_by_rank() || placement.optimizer.empty()) return all_axes_;
  return schedule_.reduces_every_micro_step() ? placement.gradient : placement.optimizer;
}

/// A unit's gradient of one micro-step is complete: reduce it, or add it to the others.
void Emission::end_gradient(const Residency& r) {
  const bool every = schedule_.reduces_every_micro_step();
  const bool sends = schedule_.sends_from_slots(r.micro_step);
  const auto drain = [&](ActionKind kind) {
    gradient_released_by_[static_cast<std::size_t>(r.slot)] = actions_.push(
        {.kind = kind, .unit = r.unit, .micro_step = r.micro_step, .slot = r.slot}, {});
  };
  const bool adds_up = !every && schedule_.micro_steps > 1;  // before it is sent
  if (r.slot >= 0 && (adds_up || !sends)) drain(ActionKind::kAccumulate);
  if (sends && adds_up) drain(ActionKind::kRound);
  if (sends) {
    gradient_released_by_[static_cast<std::size_t>(r.slot)] =
        actions_.push({.kind = ActionKind::kReduceScatter,
                       .unit = r.unit,
                       .micro_step = r.micro_step,
                       .slot = r.slot,
                       .axes = sent_axes(),
                       .accumulate = every && r.micro_step > 0},
                      {actions_.last(Lane::kCompute)});
  }
  if (r.micro_step == schedule_.micro_steps - 1) finish_gradient(r.unit);
}

/// What remains to be reduced once per step, and this rank's share of the norm.
void Emission::finish_gradient(int unit) {
  const Placement& placement = schedule_.placement;
  const AxisSet replicas = all_axes_ - placement.optimizer;
  const std::vector<int> waits{actions_.last(Lane::kCompute)};
  const auto collective = [&](ActionKind kind, AxisSet axes) {
    if (axes.empty()) return;
    const int last_micro_step = schedule_.micro_steps - 1;
    actions_.push({.kind = kind, .unit = unit, .micro_step = last_micro_step, .axes = axes}, waits);
  };
  if (schedule_.sends_from_slots(schedule_.micro_steps - 1)) {
    if (sent_axes() == all_axes_) {
      collective(ActionKind::kGatherGradient, replicas);
    } else {
      collective(ActionKind::kReduceScatter, placement.optimizer - sent_axes());
      collective(ActionKind::kAllReduce, replicas);
    }
  } else if (placement.optimizer.empty()) {
    collective(ActionKind::kAllReduce, all_axes_);
  } else if (reduces_by_rank()) {
    collective(ActionKind::kReduceScatter, all_axes_);
    collective(ActionKind::kGatherGradient, replicas);
  } else {
    collective(ActionKind::kReduceScatter, placement.optimizer);
    collective(ActionKind::kAllReduce, replicas);
  }
  actions_.push({.kind = ActionKind::kSquares, .unit = unit}, waits);
}

void Emission::emit_updates() {
  const int exchange = actions_.push({.kind = ActionKind::kExchange}, {last_loss_});
  const AxisSet regather = schedule_.placement.optimizer - schedule_.placement.parameter;
  std::vector<int> trained;
  for (const Residency& r : gradients_) trained.push_back(r.unit);
  std::ranges::sort(trained);
  trained.erase(std::ranges::unique(trained).begin(), trained.end());
  for (const int unit : trained) {
    const int update = actions_.push({.kind = ActionKind::kUpdate, .unit = unit}, {exchange});
    if (regather.empty()) continue;
    actions_.push({.kind = ActionKind::kGatherParameter, .unit = unit, .axes = regather}, {update});
  }
}

}  // namespace

void emit_actions(Schedule& schedule, const std::vector<Compute>& computes,
                  const std::vector<Residency>& parameters,
                  const std::vector<Residency>& gradients) {
  Emission(schedule, computes, parameters, gradients).run();
}

}  // namespace tessera
