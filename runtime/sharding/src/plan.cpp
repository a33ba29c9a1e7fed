#include "tessera/sharding/plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "residency.h"
#include "tessera/core/error.h"

// [Note: planning]
//
// 1. The compute lane is fixed by the model: forward of every layer, the loss layer's forward and
//    backward in one, backward of the other layers in reverse; once per micro-step.
// 2. A *residency* is a stretch of compute actions during which a unit's parameters stay in a slot.
//    Uses of a unit are merged into one residency when releasing it in between would be pointless:
//    the next use is (nearly) the next action, its all-gather would be issued before the release
//    anyway, or the policy keeps parameters until backward.
// 3. Residencies are numbered by first use; those that begin with the same action share a number.
//    The unshard of number i is issued just before the compute action with which number i - depth
//    begins. So `depth` unshards are in flight ahead of use, and all-gather i + 1 is issued before
//    the reshard or the reduction of i.
// 4. Residencies whose intervals (issue to release) overlap need different slots (residency.h). A
//    chain of equal units gets a ring: one slot in use and `depth` ahead, and one more where a
//    layer is kept while its successor is already there.
// 5. Gradient slots likewise, from the first backward action that writes to one to the point where
//    `prefetch_backward` later gradients have been started: by then its reduction must be done.
// 6. The list is emitted in issue order. Every action waits for what it needs on other lanes, less
//    what is implied already (vector clocks).
namespace tessera {
namespace {

/// An action of the compute lane, before slots and waits are known.
struct Compute {
  ActionKind kind;
  int layer;
  int micro_step;
};

void append_unique(std::vector<int>& list, int value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

std::vector<ScheduleLayer> schedule_layers(const ModelLayout& layout) {
  std::vector<ScheduleLayer> layers;
  for (const LayerLayout& in : layout.layers) {
    ScheduleLayer out{.name = in.name, .forward_reads = {}, .backward_reads = {}, .gradients = {}};
    for (const ParameterAddress& address : in.parameters) {
      append_unique(out.forward_reads, address.unit);
      if (in.backward_reads_parameters) append_unique(out.backward_reads, address.unit);
      if (address.trainable) append_unique(out.gradients, address.unit);
    }
    layers.push_back(std::move(out));
  }
  return layers;
}

class Planner {
 public:
  Planner(const ModelLayout& layout, const PlanOptions& options)
      : layout_(layout), options_(options), nesting_(options.mesh, options.placement) {}

  Schedule run() {
    describe_step();
    list_computes();
    plan_parameters();
    plan_gradients();
    emit();
    return std::move(schedule_);
  }

 private:
  void describe_step();
  void list_computes();
  void plan_parameters();
  void merge_and_issue();
  void plan_gradients();
  void emit();
  void emit_compute(int c);
  void emit_gradient_end(const Residency& gradient);
  void finish_gradient(int unit, std::vector<int> waits);
  void emit_updates();
  int push(Action action, std::vector<int> waits);

  const std::vector<int>& reads(const Compute& c) const {
    const ScheduleLayer& layer = schedule_.layers[static_cast<std::size_t>(c.layer)];
    return c.kind == ActionKind::kBackward ? layer.backward_reads : layer.forward_reads;
  }
  std::int64_t unit_numel(int unit) const {
    const ScheduleUnit& u = schedule_.units[static_cast<std::size_t>(unit)];
    return u.trainable_numel + u.frozen_numel;
  }
  bool keeps_between(int use, int next_use) const;

  const ModelLayout& layout_;
  const PlanOptions& options_;
  ShardNesting nesting_;
  Schedule schedule_;
  std::vector<Compute> computes_;
  std::vector<Residency> parameters_;
  std::vector<Residency> gradients_;  ///< all, with and without a slot
  /// Per compute action: the residencies that begin and end with it, by index.
  using Index = std::vector<std::vector<std::size_t>>;
  Index parameters_beginning_, parameters_ending_, gradients_beginning_, gradients_ending_;
  // While emitting:
  std::vector<std::array<int, kLanes>> clocks_;  ///< per action: last action of each lane before it
  std::array<int, kLanes> last_on_lane_{-1, -1, -1};
  std::vector<int> released_by_;           ///< per parameter slot: its last reshard
  std::vector<int> gradient_released_by_;  ///< per gradient slot: its last reduction
  int count_items_ = -1;
  int last_loss_ = -1;
};

void Planner::describe_step() {
  require(options_.micro_steps >= 1, ErrorCode::kConfig, "micro-steps must be 1 or more, not ",
          options_.micro_steps);
  require(options_.prefetch_forward >= 0 && options_.prefetch_backward >= 0, ErrorCode::kConfig,
          "prefetch depths must be 0 or more");
  schedule_.mesh = options_.mesh;
  schedule_.placement = nesting_.placement();
  schedule_.reduction_order = options_.reduction_order;
  schedule_.parameter_dtype = options_.parameter_dtype;
  schedule_.reduce_dtype = options_.reduce_dtype;
  schedule_.micro_steps = options_.micro_steps;
  schedule_.accumulate_unsharded = options_.accumulate_unsharded;
  schedule_.recompute = options_.recompute;
  const int ranks = options_.mesh.world_size();
  for (const Unit& unit : layout_.units) {
    for (const FlatParameter* flat : {&unit.trainable, &unit.frozen}) {
      require(flat->padded_numel % (ranks * kFlatAlignment) == 0, ErrorCode::kInvalidArgument,
              "unit '", unit.name, "' is padded to ", flat->padded_numel,
              " elements, which cannot be cut for ", ranks,
              " ranks; make the layout for as many ranks as the mesh has");
    }
    schedule_.units.push_back({unit.name, unit.trainable.padded_numel, unit.frozen.padded_numel});
  }
  schedule_.layers = schedule_layers(layout_);
  const auto trains = [](const ScheduleLayer& layer) { return !layer.gradients.empty(); };
  const auto first = std::ranges::find_if(schedule_.layers, trains);
  require(first != schedule_.layers.end(), ErrorCode::kConfig,
          "every parameter is frozen; there is nothing to train");
  schedule_.first_backward_layer = static_cast<int>(first - schedule_.layers.begin());
}

void Planner::list_computes() {
  const int last = static_cast<int>(schedule_.layers.size()) - 1;
  for (int m = 0; m < options_.micro_steps; ++m) {
    for (int l = 0; l < last; ++l) computes_.push_back({ActionKind::kForward, l, m});
    computes_.push_back({ActionKind::kLoss, last, m});
    for (int l = last - 1; l >= schedule_.first_backward_layer; --l) {
      computes_.push_back({ActionKind::kBackward, l, m});
    }
  }
}

bool Planner::keeps_between(int use, int next_use) const {
  if (next_use - use <= 2) return true;  // at most one action in between: as good as kept
  const Compute& a = computes_[static_cast<std::size_t>(use)];
  const Compute& b = computes_[static_cast<std::size_t>(next_use)];
  return !options_.reshard_after_forward && a.micro_step == b.micro_step;
}

void Planner::plan_parameters() {
  if (schedule_.placement.parameter.empty()) return;  // whole and always there
  std::vector<int> open(schedule_.units.size(), -1);  // residency that a unit's last use is in
  for (int c = 0; c < static_cast<int>(computes_.size()); ++c) {
    for (const int unit : reads(computes_[static_cast<std::size_t>(c)])) {
      int& current = open[static_cast<std::size_t>(unit)];
      if (current >= 0 && keeps_between(parameters_[static_cast<std::size_t>(current)].last, c)) {
        parameters_[static_cast<std::size_t>(current)].last = c;
        continue;
      }
      current = static_cast<int>(parameters_.size());
      parameters_.push_back({.unit = unit,
                             .numel = unit_numel(unit),
                             .first = c,
                             .last = c,
                             .micro_step = computes_[static_cast<std::size_t>(c)].micro_step});
    }
  }
  merge_and_issue();
  for (Residency& r : parameters_) {
    r.begin = 2 * r.issue;
    r.end = 2 * r.last + 1;
  }
  schedule_.parameter_slots = assign_slots(parameters_);
}

/// Sets the issue points; merges a residency into the unit's previous one of the same micro-step
/// when it would be issued before that one ends. Merging renumbers, so it repeats until nothing
/// changes.
void Planner::merge_and_issue() {
  for (bool merged = true; merged;) {
    merged = false;
    std::vector<Residency> kept;
    std::vector<int> previous(schedule_.units.size(), -1);
    std::vector<int> firsts;  // by number: the action that it begins with
    int last_issue = 0;
    for (Residency r : parameters_) {
      if (firsts.empty() || firsts.back() != r.first) firsts.push_back(r.first);
      const std::size_t number = firsts.size() - 1;
      const bool backward =
          computes_[static_cast<std::size_t>(r.first)].kind == ActionKind::kBackward;
      const auto depth = static_cast<std::size_t>(backward ? options_.prefetch_backward
                                                           : options_.prefetch_forward);
      r.issue = std::max(last_issue, number < depth ? 0 : firsts[number - depth]);
      int& before = previous[static_cast<std::size_t>(r.unit)];
      if (before >= 0 && r.issue <= kept[static_cast<std::size_t>(before)].last) {
        Residency& last = kept[static_cast<std::size_t>(before)];
        if (computes_[static_cast<std::size_t>(last.last)].micro_step == r.micro_step) {
          last.last = r.last;
          merged = true;
          continue;
        }
        r.issue = last.last + 1;  // micro-steps gather anew: their bytes do not depend on depth
      }
      last_issue = r.issue;
      before = static_cast<int>(kept.size());
      kept.push_back(r);
    }
    parameters_ = std::move(kept);
  }
}

void Planner::plan_gradients() {
  const bool every = schedule_.reduces_every_micro_step();
  std::map<std::pair<int, int>, std::size_t> open;  // (micro-step, unit) -> residency
  for (int c = 0; c < static_cast<int>(computes_.size()); ++c) {
    const Compute& compute = computes_[static_cast<std::size_t>(c)];
    if (compute.kind == ActionKind::kForward) continue;
    for (const int unit : schedule_.layers[static_cast<std::size_t>(compute.layer)].gradients) {
      const auto [it, is_new] = open.try_emplace({compute.micro_step, unit}, gradients_.size());
      if (is_new) {
        gradients_.push_back(
            {.unit = unit,
             .numel = schedule_.units[static_cast<std::size_t>(unit)].trainable_numel,
             .first = c,
             .micro_step = compute.micro_step});
      }
      gradients_[it->second].last = c;
    }
  }
  std::vector<Residency> in_slots;
  for (const Residency& r : gradients_) {
    if (every || r.micro_step > 0) in_slots.push_back(r);
  }
  const auto depth = static_cast<std::size_t>(options_.prefetch_backward);
  for (Residency& r : in_slots) {
    r.begin = 2 * r.first;
    r.end = 2 * r.last + 1;
    if (!every || depth == 0) continue;
    // in_slots is ordered by first write: the residencies that begin after r's last write ...
    const auto later = std::ranges::upper_bound(in_slots, r.last, {}, &Residency::first);
    // ... may be `depth` ahead of r's reduction.
    const auto remaining = static_cast<std::size_t>(in_slots.end() - later);
    r.end = remaining > depth ? 2 * (later + static_cast<std::ptrdiff_t>(depth))->first - 1
                              : std::numeric_limits<std::int64_t>::max();
  }
  schedule_.gradient_slots = assign_slots(in_slots);
  std::size_t next = 0;
  for (Residency& r : gradients_) {
    if (every || r.micro_step > 0) r.slot = in_slots[next++].slot;
    schedule_.gradient_targets.push_back({r.unit, r.micro_step, r.slot});
  }
}

/// Appends an action; of `waits`, keeps those that lane order and other waits do not imply.
int Planner::push(Action action, std::vector<int> waits) {
  const auto lane = static_cast<std::size_t>(action.lane());
  const int index = static_cast<int>(schedule_.actions.size());
  std::array<int, kLanes> clock{-1, -1, -1};
  if (last_on_lane_[lane] >= 0) clock = clocks_[static_cast<std::size_t>(last_on_lane_[lane])];
  std::ranges::sort(waits, std::greater<>());
  for (const int wait : waits) {
    if (wait < 0) continue;
    const auto other =
        static_cast<std::size_t>(schedule_.actions[static_cast<std::size_t>(wait)].lane());
    if (other == lane || clock[other] >= wait) continue;
    action.waits.push_back(wait);
    const auto& theirs = clocks_[static_cast<std::size_t>(wait)];
    for (std::size_t i = 0; i < kLanes; ++i) clock[i] = std::max(clock[i], theirs[i]);
  }
  std::ranges::sort(action.waits);
  clock[lane] = index;
  clocks_.push_back(clock);
  last_on_lane_[lane] = index;
  schedule_.actions.push_back(std::move(action));
  return index;
}

void Planner::emit() {
  const auto index = [this](const std::vector<Residency>& list, int Residency::*where) {
    Index out(computes_.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      out[static_cast<std::size_t>(list[i].*where)].push_back(i);
    }
    return out;
  };
  parameters_beginning_ = index(parameters_, &Residency::first);
  parameters_ending_ = index(parameters_, &Residency::last);
  gradients_beginning_ = index(gradients_, &Residency::first);
  gradients_ending_ = index(gradients_, &Residency::last);
  released_by_.assign(schedule_.parameter_slots.size(), -1);
  gradient_released_by_.assign(schedule_.gradient_slots.size(), -1);
  if (options_.mesh.world_size() > 1) {
    count_items_ = push({.kind = ActionKind::kCountItems}, {});
  }
  std::size_t next_unshard = 0;
  for (int c = 0; c < static_cast<int>(computes_.size()); ++c) {
    for (; next_unshard < parameters_.size() && parameters_[next_unshard].issue == c;
         ++next_unshard) {
      Residency& r = parameters_[next_unshard];
      const int unshard = push({.kind = ActionKind::kUnshard,
                                .unit = r.unit,
                                .micro_step = r.micro_step,
                                .slot = r.slot,
                                .axes = schedule_.placement.parameter},
                               {released_by_[static_cast<std::size_t>(r.slot)]});
      r.begin = unshard;  // from here on: the unshard's action index
    }
    emit_compute(c);
  }
  emit_updates();
}

void Planner::emit_compute(int c) {
  const auto at = static_cast<std::size_t>(c);
  const Compute& compute = computes_[at];
  std::vector<int> waits;
  for (const std::size_t i : parameters_beginning_[at]) {
    waits.push_back(static_cast<int>(parameters_[i].begin));
  }
  for (const std::size_t i : gradients_beginning_[at]) {
    const int slot = gradients_[i].slot;
    if (slot >= 0) waits.push_back(gradient_released_by_[static_cast<std::size_t>(slot)]);
  }
  if (compute.kind == ActionKind::kLoss) waits.push_back(count_items_);
  const int index =
      push({.kind = compute.kind, .layer = compute.layer, .micro_step = compute.micro_step}, waits);
  if (compute.kind == ActionKind::kLoss) last_loss_ = index;
  for (const std::size_t i : parameters_ending_[at]) {
    const Residency& r = parameters_[i];
    released_by_[static_cast<std::size_t>(r.slot)] = push({.kind = ActionKind::kReshard,
                                                           .unit = r.unit,
                                                           .micro_step = compute.micro_step,
                                                           .slot = r.slot},
                                                          {});
  }
  for (const std::size_t i : gradients_ending_[at]) emit_gradient_end(gradients_[i]);
}

/// A unit's gradient of one micro-step is complete: reduce it, or add it to the others.
void Planner::emit_gradient_end(const Residency& r) {
  const bool is_last_micro_step = r.micro_step == options_.micro_steps - 1;
  const int computed = last_on_lane_[static_cast<std::size_t>(Lane::kCompute)];
  if (schedule_.reduces_every_micro_step()) {
    const AxisSet axes = schedule_.reduction_order == ReductionOrder::kRank
                             ? nesting_.all_axes()
                             : schedule_.placement.gradient;
    gradient_released_by_[static_cast<std::size_t>(r.slot)] =
        push({.kind = ActionKind::kReduceScatter,
              .unit = r.unit,
              .micro_step = r.micro_step,
              .slot = r.slot,
              .axes = axes,
              .accumulate = r.micro_step > 0},
             {computed});
  } else if (r.slot >= 0) {
    gradient_released_by_[static_cast<std::size_t>(r.slot)] = push({.kind = ActionKind::kAccumulate,
                                                                    .unit = r.unit,
                                                                    .micro_step = r.micro_step,
                                                                    .slot = r.slot},
                                                                   {});
  }
  if (is_last_micro_step) {
    finish_gradient(r.unit, {last_on_lane_[static_cast<std::size_t>(Lane::kCompute)]});
  }
}

/// What remains to be reduced once per step, and this rank's share of the norm.
void Planner::finish_gradient(int unit, std::vector<int> waits) {
  const Placement& placement = schedule_.placement;
  const AxisSet all = nesting_.all_axes();
  const AxisSet replicas = all - placement.optimizer;
  const bool by_rank = schedule_.reduction_order == ReductionOrder::kRank;
  const int m = options_.micro_steps - 1;
  const auto collective = [&](ActionKind kind, AxisSet axes) {
    if (axes.empty()) return;
    push({.kind = kind, .unit = unit, .micro_step = m, .axes = axes}, waits);
  };
  if (schedule_.reduces_every_micro_step()) {
    if (by_rank) {
      collective(ActionKind::kGatherGradient, replicas);
    } else {
      collective(ActionKind::kReduceScatter, placement.optimizer - placement.gradient);
      collective(ActionKind::kAllReduce, replicas);
    }
  } else if (placement.optimizer.empty()) {
    collective(ActionKind::kAllReduce, all);
  } else if (by_rank) {
    collective(ActionKind::kReduceScatter, all);
    collective(ActionKind::kGatherGradient, replicas);
  } else {
    collective(ActionKind::kReduceScatter, placement.optimizer);
    collective(ActionKind::kAllReduce, replicas);
  }
  push({.kind = ActionKind::kSquares, .unit = unit}, waits);
}

void Planner::emit_updates() {
  const int exchange = push({.kind = ActionKind::kExchange}, {last_loss_});
  const AxisSet regather = schedule_.placement.optimizer - schedule_.placement.parameter;
  std::vector<int> trained;
  for (const Residency& r : gradients_) append_unique(trained, r.unit);
  std::ranges::sort(trained);
  for (const int unit : trained) {
    const int update = push({.kind = ActionKind::kUpdate, .unit = unit}, {exchange});
    if (!regather.empty()) {
      push({.kind = ActionKind::kGatherParameter, .unit = unit, .axes = regather}, {update});
    }
  }
}

}  // namespace

Schedule plan(const ModelLayout& layout, const PlanOptions& options) {
  return Planner(layout, options).run();
}

}  // namespace tessera
