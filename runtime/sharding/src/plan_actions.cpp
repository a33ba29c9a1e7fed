#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "order.h"
#include "planning.h"

namespace tessera {
namespace {

constexpr std::array<int, kLanes> no_actions() {
  std::array<int, kLanes> none{};
  none.fill(-1);
  return none;
}

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
  std::array<int, kLanes> last_ = no_actions();
};

int ActionList::push(Action action, std::vector<int> waits) {
  const auto lane = static_cast<std::size_t>(action.lane);
  const int index = static_cast<int>(actions_.size());
  std::array<int, kLanes> clock = no_actions();
  if (last_[lane] >= 0) clock = clocks_[static_cast<std::size_t>(last_[lane])];
  std::ranges::sort(waits, std::greater<>());
  for (const int wait : waits) {
    if (wait < 0) continue;
    const auto other = static_cast<std::size_t>(actions_[static_cast<std::size_t>(wait)].lane);
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
  Emission(Schedule& schedule, const PlanOptions& options, const GradientRoute& route,
           const std::vector<Compute>& computes, const std::vector<Residency>& parameters,
           const std::vector<Residency>& gradients)
      : schedule_(schedule),
        optimizer_lane_(options.overlap_optimizer ? Lane::kOptimizer : Lane::kCompute),
        route_(route),
        computes_(computes),
        parameters_(parameters),
        gradients_(gradients),
        actions_(schedule.actions),
        units_(schedule.units.size()) {
    for (int b = 0; b < static_cast<int>(schedule.buffers.size()); ++b) list_buffer(b);
    parameter_released_by_.assign(parameter_slots_.size(), -1);
    shard_released_by_.assign(shard_slots_.size(), -1);
    gradient_released_by_.assign(gradient_slots_.size(), -1);
  }

  void run();

 private:
  /// A unit's buffers, and where it is at this point of the walk.
  struct UnitPlace {
    std::vector<int> parameters;  ///< trainable, frozen
    std::vector<int> optimizer;   ///< master weights and what the optimizer keeps
    int master = -1;
    int gradient = -1;
    bool is_read_from_host = false;
    bool is_updated_on_host = false;
    int host_gradient = -1;   ///< where it is updated on the host
    int host_parameter = -1;  ///< written there, and copied to the device; -1: none
    int parameter_slot = -1;  ///< buffer
    int gradient_slot = -1;   ///< buffer
    bool begun = false;       ///< the gradient of this micro-step
  };

  void list_buffer(int buffer);
  void emit_unshard(const Residency& parameters);
  void emit_compute(std::size_t c);
  void read_parameters(Action& action, const std::vector<int>& units);
  void write_gradients(Action& action);
  void end_gradient(const Residency& gradient);
  void finish_gradient(int unit);
  void emit_updates();

  UnitPlace& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  Operand gradient(int unit, AxisSet sharded) { return {at(unit).gradient, unit, sharded}; }
  bool is_gathered(int parameters) const {
    const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(parameters)];
    return schedule_.is_gathered(buffer.unit, buffer.role);
  }
  bool trains() const { return schedule_.purpose == Purpose::kTrain; }

  Schedule& schedule_;
  const Lane optimizer_lane_;
  const GradientRoute& route_;
  const std::vector<Compute>& computes_;
  const std::vector<Residency>& parameters_;
  const std::vector<Residency>& gradients_;
  const Index parameters_begin_ = index_by(&Residency::first, parameters_, computes_.size());
  const Index parameters_end_ = index_by(&Residency::last, parameters_, computes_.size());
  const Index gradients_begin_ = index_by(&Residency::first, gradients_, computes_.size());
  const Index gradients_end_ = index_by(&Residency::last, gradients_, computes_.size());
  ActionList actions_;
  std::vector<UnitPlace> units_;
  std::vector<int> parameter_slots_, gradient_slots_, shard_slots_;  ///< buffers
  std::vector<int> unshards_;               ///< per residency so far: its unshard
  std::vector<int> parameter_released_by_;  ///< per slot: its last reshard
  std::vector<int> gradient_released_by_;   ///< per slot: its last reduction
  std::vector<int> shard_released_by_;      ///< per slot: its last all-gather
  std::size_t next_shard_slot_ = 0;
  Operand tokens_, loss_, norm_, results_;
  int count_tokens_ = -1;
  int last_loss_ = -1;
};

void Emission::list_buffer(int index) {
  const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(index)];
  if (buffer.is_slot()) {
    std::vector<int>& whole = buffer.role == Role::kParameter ? parameter_slots_ : gradient_slots_;
    (buffer.name.front() == kShardSlot ? shard_slots_ : whole).push_back(index);
    return;
  }
  if (buffer.role == Role::kScalars) {
    for (const auto& [name, operand] : {std::pair(kTokensBuffer, &tokens_),
                                        {kLossBuffer, &loss_},
                                        {kNormBuffer, &norm_},
                                        {kResultsBuffer, &results_}}) {
      if (buffer.name == name) operand->buffer = index;
    }
    return;
  }
  UnitPlace& unit = at(buffer.unit);
  const bool on_host = buffer.tier == Tier::kHost;
  if (buffer.role == Role::kGradient) {
    (on_host ? unit.host_gradient : unit.gradient) = index;
  } else if (buffer.role == Role::kMaster || buffer.role == Role::kOptimizer) {
    unit.optimizer.push_back(index);
    if (buffer.role == Role::kMaster) unit.master = index;
  } else if (copied_name(buffer.name) != buffer.name) {
    unit.host_parameter = index;
  } else {
    unit.parameters.push_back(index);
    unit.is_read_from_host = on_host;
  }
  unit.is_updated_on_host = schedule_.updates_on_host(buffer.unit);
}

void Emission::run() {
  Action count{.operation = &operations::kCountTokens, .lane = Lane::kReduce};
  count.writes = {tokens_, loss_};
  if (trains()) count.writes.push_back(norm_);
  count_tokens_ = actions_.push(std::move(count), {});
  for (std::size_t c = 0; c < computes_.size(); ++c) {
    while (unshards_.size() < parameters_.size() &&
           parameters_[unshards_.size()].issue == static_cast<int>(c)) {
      emit_unshard(parameters_[unshards_.size()]);
    }
    emit_compute(c);
  }
  emit_updates();
}

void Emission::emit_unshard(const Residency& r) {
  const auto slot = static_cast<std::size_t>(r.slot);
  UnitPlace& unit = at(r.unit);
  unit.parameter_slot = parameter_slots_[slot];
  Action action{.operation = &operations::kAllGather,
                .lane = Lane::kGather,
                .writes = {{.buffer = unit.parameter_slot, .unit = r.unit}}};
  for (const int buffer : unit.parameters) {
    if (!is_gathered(buffer)) continue;
    action.axes = schedule_.buffers[static_cast<std::size_t>(buffer)].sharded;
    action.reads.push_back({buffer, r.unit, action.axes});
  }
  const AxisSet sharded = action.axes;
  std::vector<int> waits{parameter_released_by_[slot]};
  std::size_t shard_slot = 0;
  if (unit.is_read_from_host) {
    Action copy{.operation = &operations::kCopy,
                .lane = Lane::kCopyIn,
                .reads = action.reads,
                .writes = action.writes};
    if (sharded.empty()) {
      unshards_.push_back(actions_.push(std::move(copy), waits));
      return;
    }
    shard_slot = next_shard_slot_++ % shard_slots_.size();
    copy.writes = {{shard_slots_[shard_slot], r.unit, sharded}};
    action.reads = copy.writes;
    waits.push_back(actions_.push(std::move(copy), {shard_released_by_[shard_slot]}));
  }
  unshards_.push_back(actions_.push(std::move(action), waits));
  if (unit.is_read_from_host) shard_released_by_[shard_slot] = unshards_.back();
}

void Emission::read_parameters(Action& action, const std::vector<int>& units) {
  for (const int u : units) {
    const UnitPlace& unit = at(u);
    if (schedule_.gathered_numel(u) > 0) {
      action.reads.push_back({.buffer = unit.parameter_slot, .unit = u});
    }
    for (const int buffer : unit.parameters) {
      if (!is_gathered(buffer)) action.reads.push_back({.buffer = buffer, .unit = u});
    }
  }
}

void Emission::write_gradients(Action& action) {
  for (const int u : schedule_.layers[static_cast<std::size_t>(action.layer)].gradients) {
    UnitPlace& unit = at(u);
    const int buffer = unit.gradient_slot >= 0 ? unit.gradient_slot : unit.gradient;
    action.writes.push_back({.buffer = buffer, .unit = u, .adds = unit.begun});
    unit.begun = true;
  }
}

void Emission::emit_compute(std::size_t c) {
  const Compute& compute = computes_[c];
  const ScheduleLayer& layer = schedule_.layers[static_cast<std::size_t>(compute.layer)];
  std::vector<int> waits;
  for (const std::size_t i : parameters_begin_[c]) waits.push_back(unshards_[i]);
  for (const std::size_t i : gradients_begin_[c]) {
    const Residency& r = gradients_[i];
    UnitPlace& unit = at(r.unit);
    unit.gradient_slot = r.slot < 0 ? -1 : gradient_slots_[static_cast<std::size_t>(r.slot)];
    unit.begun = false;
    if (r.slot >= 0) waits.push_back(gradient_released_by_[static_cast<std::size_t>(r.slot)]);
  }
  Action action{
      .operation = compute.pass, .layer = compute.layer, .micro_step = compute.micro_step};
  const bool backward = compute.pass == &operations::kBackward;
  const bool loss = compute.pass == &operations::kLoss;
  std::vector<int> units = backward ? layer.backward_reads : layer.forward_reads;
  for (const int unit : loss ? layer.backward_reads : std::vector<int>()) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  read_parameters(action, units);
  const auto input = [&] { return schedule_.activation(compute.layer - 1, compute.micro_step); };
  const int output = schedule_.activation(compute.layer, compute.micro_step);
  if (backward) {
    action.reads.push_back({.buffer = output});
    action.reads.push_back({.buffer = output + 1});
  } else if (compute.layer > 0) {
    action.reads.push_back({.buffer = input()});
  }
  if (backward || loss) {
    write_gradients(action);
    if (compute.layer > schedule_.first_backward_layer) {
      action.writes.push_back({.buffer = input() + 1});
    }
  }
  if (compute.pass == &operations::kForward) action.writes.push_back({.buffer = output});
  const bool losses = loss || compute.pass == &operations::kForwardLoss;
  if (loss) action.reads.push_back(tokens_);
  if (losses) {
    action.writes.push_back(loss_);
    action.writes.back().adds = true;
    waits.push_back(count_tokens_);
  }
  const int index = actions_.push(std::move(action), waits);
  if (losses) last_loss_ = index;
  for (const std::size_t i : parameters_end_[c]) {
    const Residency& r = parameters_[i];
    const auto slot = static_cast<std::size_t>(r.slot);
    parameter_released_by_[slot] =
        actions_.push({.operation = &operations::kReshard,
                       .writes = {{.buffer = parameter_slots_[slot], .unit = r.unit}}},
                      {});
  }
  for (const std::size_t i : gradients_end_[c]) end_gradient(gradients_[i]);
}

/// A unit's gradient of one micro-step is complete: reduce it, or add it to the others.
void Emission::end_gradient(const Residency& r) {
  const bool sends = route_.sends_from_slots(r.micro_step);
  const bool adds = r.micro_step > 0;
  if (r.slot >= 0) {
    int& released_by = gradient_released_by_[static_cast<std::size_t>(r.slot)];
    const Operand slot{.buffer = at(r.unit).gradient_slot, .unit = r.unit};
    Operand sum = gradient(r.unit, {});
    if (route_.adds_up || !sends) {
      sum.adds = adds;
      released_by =
          actions_.push({.operation = &operations::kCast, .reads = {slot}, .writes = {sum}}, {});
      sum.adds = false;
      if (sends) {
        released_by =
            actions_.push({.operation = &operations::kCast, .reads = {sum}, .writes = {slot}}, {});
      }
    }
    if (sends) {
      sum.sharded = route_.sent_axes;
      sum.adds = route_.every && adds;
      released_by = actions_.push({.operation = &operations::kReduceScatter,
                                   .lane = Lane::kReduce,
                                   .reads = {slot},
                                   .writes = {sum},
                                   .axes = route_.sent_axes},
                                  {actions_.last(Lane::kCompute)});
    }
  }
  if (trains() && r.micro_step == schedule_.micro_steps - 1) finish_gradient(r.unit);
}

/// What remains to be reduced once per step, and this rank's share of the norm.
void Emission::finish_gradient(int unit) {
  const AxisSet all = route_.all_axes, optimizer = route_.optimizer_axes;
  const AxisSet replicas = all - optimizer;
  const std::vector<int> waits{actions_.last(Lane::kCompute)};
  const auto collective = [&](const Operation& operation, AxisSet axes, AxisSet from, AxisSet to) {
    if (axes.empty()) return;
    actions_.push({.operation = &operation,
                   .lane = Lane::kReduce,
                   .reads = {gradient(unit, from)},
                   .writes = {gradient(unit, to)},
                   .axes = axes},
                  waits);
  };
  using namespace operations;  // NOLINT: rows of the table
  if (route_.sends_from_slots(schedule_.micro_steps - 1)) {
    const AxisSet sent = route_.sent_axes;
    if (sent == all) {
      collective(kAllGather, replicas, all, optimizer);
    } else {
      collective(kReduceScatter, optimizer - sent, sent, optimizer);
      collective(kAllReduce, replicas, optimizer, optimizer);
    }
  } else if (optimizer.empty()) {
    collective(kAllReduce, all, {}, {});
  } else if (route_.by_rank) {
    collective(kReduceScatter, all, {}, all);
    collective(kAllGather, replicas, all, optimizer);
  } else {
    collective(kReduceScatter, optimizer, {}, optimizer);
    collective(kAllReduce, replicas, optimizer, optimizer);
  }
  if (at(unit).is_updated_on_host) {  // add_waits() finds what it comes after
    actions_.push({.operation = &kCopy,
                   .lane = Lane::kCopyOut,
                   .reads = {gradient(unit, optimizer)},
                   .writes = {{at(unit).host_gradient, unit, optimizer}}},
                  {});
  }
  Operand norm = norm_;
  norm.adds = true;
  actions_.push({.operation = &kNormPartial,
                 .lane = Lane::kReduce,
                 .reads = {gradient(unit, all)},
                 .writes = {norm}},
                waits);
}

void Emission::emit_updates() {
  Action results{.operation = &operations::kResults,
                 .lane = Lane::kReduce,
                 .reads = {tokens_, loss_},
                 .writes = {results_}};
  if (trains()) results.reads.push_back(norm_);
  const Operand clip_factor = results.writes.front();
  const int known = actions_.push(std::move(results), {last_loss_});
  const AxisSet parameter = schedule_.placement.parameter, optimizer = route_.optimizer_axes;
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    const UnitPlace& unit = at(u);
    if (unit.gradient < 0) continue;
    const Operand updated{unit.parameters.front(), u, optimizer};
    const int sum = unit.is_updated_on_host ? unit.host_gradient : unit.gradient;
    const bool goes_back = unit.is_updated_on_host && !unit.is_read_from_host;
    Action step{.operation = &operations::kOptimizerStep,
                .lane = unit.is_updated_on_host ? Lane::kOptimizer : optimizer_lane_,
                .reads = {{sum, u, optimizer}, clip_factor}};
    if (!goes_back) step.writes.push_back(updated);
    if (unit.master < 0) step.reads.push_back(updated);
    for (const int buffer : unit.optimizer) {
      step.reads.push_back({buffer, u, optimizer});
      step.writes.push_back({buffer, u, optimizer});
    }
    if (unit.host_parameter >= 0) step.writes.push_back({unit.host_parameter, u, optimizer});
    int index = actions_.push(std::move(step), {known});
    if (goes_back) {
      const int from = unit.host_parameter >= 0 ? unit.host_parameter : unit.master;
      index = actions_.push({.operation = &operations::kCopy,
                             .lane = Lane::kCopyIn,
                             .reads = {{from, u, optimizer}},
                             .writes = {updated}},
                            {index});
    }
    if (optimizer == parameter) continue;
    actions_.push({.operation = &operations::kAllGather,
                   .lane = Lane::kGather,
                   .reads = {updated},
                   .writes = {{updated.buffer, u, parameter}},
                   .axes = optimizer - parameter},
                  {index});
  }
}

}  // namespace

void emit_actions(Schedule& schedule, const PlanOptions& options, const GradientRoute& route,
                  const std::vector<Compute>& computes, const std::vector<Residency>& parameters,
                  const std::vector<Residency>& gradients) {
  Emission(schedule, options, route, computes, parameters, gradients).run();
}

void add_waits(Schedule& schedule) {
  find_unordered(schedule, [&](const Unordered& unordered) {
    Action& action = schedule.actions[static_cast<std::size_t>(unordered.action)];
    (unordered.of_previous_step ? action.previous_waits : action.waits).push_back(unordered.other);
    return true;
  });
  for (Action& action : schedule.actions) {
    std::ranges::sort(action.waits);
    std::ranges::sort(action.previous_waits);
  }
}

}  // namespace tessera
