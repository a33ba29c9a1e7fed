#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "planning.h"

namespace tessera {
namespace {

/// By compute action: the residencies, or inputs, that begin, or end, with it.
using Index = std::vector<std::vector<std::size_t>>;

template <typename T>
Index index_by(int T::*where, const std::vector<T>& list, std::size_t computes) {
  Index index(computes);
  for (std::size_t i = 0; i < list.size(); ++i) {
    index[static_cast<std::size_t>(list[i].*where)].push_back(i);
  }
  return index;
}

class Emission {
 public:
  Emission(Schedule& schedule, const PlanOptions& options, const GradientRoute& route,
           const std::vector<Compute>& computes, const Residencies& residencies)
      : schedule_(schedule),
        optimizer_lane_(options.overlap_optimizer ? Lane::kOptimizer : Lane::kCompute),
        route_(route),
        computes_(computes),
        parameters_(residencies.parameters),
        quantized_(residencies.quantized),
        decoded_(residencies.decoded),
        gradients_(residencies.gradients),
        inputs_(residencies.inputs),
        actions_(schedule.actions),
        units_(schedule.units.size()) {
    for (int b = 0; b < static_cast<int>(schedule.buffers.size()); ++b) list_buffer(b);
    for (std::size_t u = 0; u < units_.size(); ++u)
      units_[u].keeps_gradient_on_host = route.on_host[u];
  }

  void run();

 private:
  /// A unit's buffers, and where it is at this point of the walk.
  struct UnitPlace {
    std::vector<int> parameters;  ///< trainable, frozen
    int quantized = -1;
    std::vector<int> optimizer;  ///< parameters on disk, master weights, what the optimizer keeps
    int master = -1;
    int gradient = -1;  ///< buffer; where it is kept on the host, the slot that has it just now
    Tier home = Tier::kDevice;  ///< of what is trained
    bool is_updated_on_host = false;
    bool keeps_gradient_on_host = false;
    int host_gradient = -1;   ///< where it is updated on the host, or the gradient is kept there
    AxisSet kept_as{};        ///< along which the gradient on the host is sharded just now
    int host_parameter = -1;  ///< written there, and copied to the device; -1: none
    int parameter_slot = -1;  ///< buffer
    int quantized_slot = -1;  ///< buffer
    int decoded_slot = -1;    ///< buffer
    int gradient_slot = -1;   ///< buffer
    bool begun = false;       ///< the gradient of this micro-step
  };

  /// Buffers that take turns.
  struct Ring {
    std::vector<int> slots{};
    std::size_t turn = 0;
    int next() { return slots[turn++ % slots.size()]; }
  };

  void list_buffer(int buffer);
  void list_slot(int buffer);
  void list_state(int buffer);
  void emit_unshard(const Residency& parameters);
  void emit_unshard_of_quantized(const Residency& quantized);
  void bring(const std::vector<int>& flats, int slot, Ring& staging, Ring& shards);
  void emit_decode(const Residency& decoded);
  void emit_reshard(int slot, int unit);
  void emit_compute(std::size_t c);
  void emit_input_moves(std::size_t c);
  void copy_input(const OffloadedInput& input, bool leaves);
  void read_parameters(Action& action, const std::vector<int>& units);
  void write_gradients(Action& action);
  void end_gradient(const Residency& gradient);
  void finish_gradient(int unit);
  void fetch_sum(int unit, bool begun);
  void keep_sum(int unit, AxisSet sharded);
  std::vector<int> read_state(const UnitPlace& unit);
  void copy_state(Lane lane, int from, int to, int unit);
  void write_state(int unit, const std::vector<int>& held);
  void gather_updated(int unit, int from);
  void emit_updates();
  void emit_update(int unit);

  UnitPlace& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  Operand activation(int layer, int micro_step) const {
    return {.buffer = activations_.at({BufferKind::kActivation, layer, micro_step})};
  }
  Operand gradient_of_activation(int layer, int micro_step) const {
    return {.buffer = activations_.at({BufferKind::kActivationGradient, layer, micro_step})};
  }
  Operand batch(int micro_step) const {
    return {.buffer = activations_.at({BufferKind::kBatch, -1, micro_step})};
  }
  Operand gradient(int unit, AxisSet sharded) { return {at(unit).gradient, unit, sharded}; }
  bool is_gathered(int parameters) const {
    const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(parameters)];
    return schedule_.is_gathered(buffer.unit, buffer.role);
  }
  /// Whether ranks keep more of a unit's parameters than each updates.
  bool updates_parts() const { return schedule_.placement.parameter != route_.optimizer_axes; }
  bool trains() const { return schedule_.purpose == Purpose::kTrain; }

  Schedule& schedule_;
  const Lane optimizer_lane_;
  const GradientRoute& route_;
  const std::vector<Compute>& computes_;
  const std::vector<Residency>& parameters_;
  const std::vector<Residency>& quantized_;
  const std::vector<Residency>& decoded_;
  const std::vector<Residency>& gradients_;
  const std::vector<OffloadedInput>& inputs_;
  const Index parameters_end_ = index_by(&Residency::last, parameters_, computes_.size());
  const Index quantized_end_ = index_by(&Residency::last, quantized_, computes_.size());
  const Index decoded_begin_ = index_by(&Residency::first, decoded_, computes_.size());
  const Index decoded_end_ = index_by(&Residency::last, decoded_, computes_.size());
  const Index gradients_begin_ = index_by(&Residency::first, gradients_, computes_.size());
  const Index gradients_end_ = index_by(&Residency::last, gradients_, computes_.size());
  const Index inputs_left_ = index_by(&OffloadedInput::forward, inputs_, computes_.size());
  const Index inputs_gone_ = index_by(&OffloadedInput::release, inputs_, computes_.size());
  const Index inputs_back_ = index_by(&OffloadedInput::reserve, inputs_, computes_.size());
  std::vector<Action>& actions_;
  std::vector<UnitPlace> units_;
  std::vector<int> parameter_slots_, gradient_slots_, quantized_slots_,
      decoded_slots_;  ///< buffers
  Ring shard_slots_, quantized_shard_slots_, staging_slots_, quantized_staging_slots_;
  Ring sum_slots_, update_slots_, host_update_slots_;
  /// By layer and micro-step; batches have no layer.
  std::map<std::tuple<BufferKind, int, int>, int> activations_;
  std::map<std::pair<Role, std::string>, std::vector<int>> state_slots_;  ///< by tensor
  std::size_t unshards_ = 0;                                              ///< issued so far
  std::size_t unshards_of_quantized_ = 0;                                 ///< the same
  std::size_t next_state_turn_ = 0;
  Operand tokens_, loss_, norm_, results_;
};

void Emission::list_slot(int index) {
  const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(index)];
  const bool on_host = buffer.tier == Tier::kHost, quantized = buffer.role == Role::kQuantized;
  switch (buffer.kind) {
    case BufferKind::kSumSlot:
      return sum_slots_.slots.push_back(index);
    case BufferKind::kUpdateSlot:
      return (on_host ? host_update_slots_ : update_slots_).slots.push_back(index);
    case BufferKind::kStagingSlot:
      return (quantized ? quantized_staging_slots_ : staging_slots_).slots.push_back(index);
    case BufferKind::kShardSlot:
      return (quantized ? quantized_shard_slots_ : shard_slots_).slots.push_back(index);
    case BufferKind::kStateSlot:
      return state_slots_[{buffer.role, buffer.tensor}].push_back(index);
    default:
      return (quantized                         ? quantized_slots_
              : buffer.role == Role::kDecoded   ? decoded_slots_
              : buffer.role == Role::kParameter ? parameter_slots_
                                                : gradient_slots_)
          .push_back(index);
  }
}

void Emission::list_buffer(int index) {
  const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(index)];
  switch (buffer.kind) {
    case BufferKind::kTokens:
      tokens_.buffer = index;
      return;
    case BufferKind::kLoss:
      loss_.buffer = index;
      return;
    case BufferKind::kNorm:
      norm_.buffer = index;
      return;
    case BufferKind::kResults:
      results_.buffer = index;
      return;
    case BufferKind::kInput:
      return;  // found by its layer
    case BufferKind::kBatch:
    case BufferKind::kActivation:
    case BufferKind::kActivationGradient:
      activations_[{buffer.kind, buffer.layer, buffer.micro_step}] = index;
      return;
    case BufferKind::kGradient:
      at(buffer.unit).gradient = index;
      break;
    case BufferKind::kCopy:
      (buffer.role == Role::kGradient ? at(buffer.unit).host_gradient
                                      : at(buffer.unit).host_parameter) = index;
      break;
    case BufferKind::kState:
      list_state(index);
      break;
    default:
      return list_slot(index);
  }
  at(buffer.unit).is_updated_on_host = schedule_.updates_on_host(buffer.unit);
}

void Emission::list_state(int index) {
  const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(index)];
  UnitPlace& unit = at(buffer.unit);
  if (buffer.role == Role::kMaster || buffer.role == Role::kOptimizer) {
    unit.optimizer.push_back(index);
    if (buffer.role == Role::kMaster) unit.master = index;
  } else if (buffer.role == Role::kQuantized) {
    unit.quantized = index;
  } else {
    unit.parameters.push_back(index);
    if (buffer.role == Role::kParameter) {
      unit.home = buffer.tier;
      if (buffer.tier == Tier::kDisk) unit.optimizer.push_back(index);
    }
  }
}

void Emission::run() {
  Action count{.operation = &operations::kCountTokens, .lane = Lane::kReduce};
  count.writes = {tokens_, loss_};
  if (trains()) count.writes.push_back(norm_);
  actions_.push_back(std::move(count));
  for (std::size_t c = 0; c < computes_.size(); ++c) {
    emit_input_moves(c);
    while (unshards_ < parameters_.size() && parameters_[unshards_].issue == static_cast<int>(c)) {
      emit_unshard(parameters_[unshards_++]);
    }
    while (unshards_of_quantized_ < quantized_.size() &&
           quantized_[unshards_of_quantized_].issue == static_cast<int>(c)) {
      emit_unshard_of_quantized(quantized_[unshards_of_quantized_++]);
    }
    for (const std::size_t i : decoded_begin_[c]) emit_decode(decoded_[i]);
    emit_compute(c);
  }
  emit_updates();
}

void Emission::emit_unshard(const Residency& r) {
  UnitPlace& unit = at(r.unit);
  unit.parameter_slot = parameter_slots_[static_cast<std::size_t>(r.slot)];
  std::vector<int> gathered;
  std::ranges::copy_if(unit.parameters, std::back_inserter(gathered),
                       [this](int buffer) { return is_gathered(buffer); });
  bring(gathered, unit.parameter_slot, staging_slots_, shard_slots_);
}

void Emission::emit_unshard_of_quantized(const Residency& r) {
  UnitPlace& unit = at(r.unit);
  unit.quantized_slot = quantized_slots_[static_cast<std::size_t>(r.slot)];
  bring({unit.quantized}, unit.quantized_slot, quantized_staging_slots_, quantized_shard_slots_);
}

/// Brings flat parameters of a unit from where they are to a slot for layers, all-gathered.
void Emission::bring(const std::vector<int>& flats, int slot, Ring& staging, Ring& shards) {
  const ScheduleBuffer& first = schedule_.buffers[static_cast<std::size_t>(flats.front())];
  const Operand all{.buffer = slot, .unit = first.unit};
  std::vector<Operand> from;
  for (const int flat : flats) from.push_back({flat, first.unit, first.sharded});
  const auto copy = [&](Lane lane, const Operand& to) {
    actions_.push_back(
        {.operation = &operations::kCopy, .lane = lane, .reads = std::move(from), .writes = {to}});
    from = {to};
  };
  if (first.tier == Tier::kDisk) copy(Lane::kDiskIn, {staging.next(), first.unit, first.sharded});
  if (first.tier != Tier::kDevice) {
    if (first.sharded.empty()) return copy(Lane::kCopyIn, all);
    copy(Lane::kCopyIn, {shards.next(), first.unit, first.sharded});
  }
  actions_.push_back({.operation = &operations::kAllGather,
                      .lane = Lane::kGather,
                      .reads = from,
                      .writes = {all},
                      .axes = first.sharded});
}

void Emission::emit_decode(const Residency& r) {
  UnitPlace& unit = at(r.unit);
  unit.decoded_slot = decoded_slots_[static_cast<std::size_t>(r.slot)];
  const bool gathered = schedule_.is_gathered(r.unit, Role::kQuantized);
  actions_.push_back(
      {.operation = &operations::kDecode,
       .reads = {{.buffer = gathered ? unit.quantized_slot : unit.quantized, .unit = r.unit}},
       .writes = {{.buffer = unit.decoded_slot, .unit = r.unit}}});
}

void Emission::emit_reshard(int slot, int unit) {
  actions_.push_back(
      {.operation = &operations::kReshard, .writes = {{.buffer = slot, .unit = unit}}});
}

void Emission::read_parameters(Action& action, const std::vector<int>& units) {
  for (const int u : units) {
    const UnitPlace& unit = at(u);
    if (unit.quantized >= 0) action.reads.push_back({.buffer = unit.decoded_slot, .unit = u});
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

/// The copy of an input to the host, or back.
void Emission::copy_input(const OffloadedInput& input, bool leaves) {
  const Operand here = activation(input.layer, input.micro_step);
  const Operand there{.buffer = schedule_.input_on_host(input.layer)};
  actions_.push_back({.operation = &operations::kCopy,
                      .lane = leaves ? Lane::kCopyOut : Lane::kCopyIn,
                      .reads = {leaves ? here : there},
                      .writes = {leaves ? there : here}});
}

/// What becomes of inputs before a pass: memory of some is given back, others return.
void Emission::emit_input_moves(std::size_t c) {
  const auto push = [&](const Operation& operation, std::size_t i) {
    const OffloadedInput& input = inputs_[i];
    actions_.push_back(
        {.operation = &operation, .writes = {activation(input.layer, input.micro_step)}});
  };
  for (const std::size_t i : inputs_gone_[c]) push(operations::kRelease, i);
  for (const std::size_t i : inputs_back_[c]) {
    push(operations::kReserve, i);
    copy_input(inputs_[i], false);
  }
}

void Emission::emit_compute(std::size_t c) {
  const Compute& compute = computes_[c];
  const ScheduleLayer& layer = schedule_.layers[static_cast<std::size_t>(compute.layer)];
  for (const std::size_t i : gradients_begin_[c]) {
    const Residency& r = gradients_[i];
    UnitPlace& unit = at(r.unit);
    unit.gradient_slot = r.slot < 0 ? -1 : gradient_slots_[static_cast<std::size_t>(r.slot)];
    unit.begun = false;
  }
  Action action{
      .operation = compute.pass, .layer = compute.layer, .micro_step = compute.micro_step};
  const PassParts& parts = compute.pass->parts;
  const bool last = &layer == &schedule_.layers.back();
  std::vector<int> units = parts.forward ? layer.forward_reads : std::vector<int>();
  for (const int unit : parts.backward ? layer.backward_reads : std::vector<int>()) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  read_parameters(action, units);
  if (layer.reads_batch) action.reads.push_back(batch(compute.micro_step));
  if (!parts.forward) {
    action.reads.push_back(activation(compute.layer, compute.micro_step));
    if (parts.backward && !last) {
      action.reads.push_back(gradient_of_activation(compute.layer, compute.micro_step));
    }
  } else if (Schedule::takes_activation(compute.layer)) {
    action.reads.push_back(activation(compute.layer - 1, compute.micro_step));
  }
  if (last && trains()) action.reads.push_back(tokens_);
  if (parts.gradients) write_gradients(action);
  if (parts.backward && compute.layer > schedule_.first_backward_layer) {
    action.writes.push_back(gradient_of_activation(compute.layer - 1, compute.micro_step));
  }
  if (leaves_activation(schedule_, compute)) {
    action.writes.push_back(activation(compute.layer, compute.micro_step));
  }
  if (parts.losses) {
    action.writes.push_back(loss_);
    action.writes.back().adds = true;
  }
  actions_.push_back(std::move(action));
  for (const std::size_t i : inputs_left_[c]) copy_input(inputs_[i], true);
  for (const std::size_t i : parameters_end_[c]) {
    const Residency& r = parameters_[i];
    emit_reshard(parameter_slots_[static_cast<std::size_t>(r.slot)], r.unit);
  }
  for (const std::size_t i : decoded_end_[c]) {
    const Residency& r = decoded_[i];
    emit_reshard(decoded_slots_[static_cast<std::size_t>(r.slot)], r.unit);
  }
  for (const std::size_t i : quantized_end_[c]) {
    const Residency& r = quantized_[i];
    emit_reshard(quantized_slots_[static_cast<std::size_t>(r.slot)], r.unit);
  }
  for (const std::size_t i : gradients_end_[c]) end_gradient(gradients_[i]);
}

/// A unit's gradient of one micro-step is complete: reduce it, or add it to the others.
void Emission::end_gradient(const Residency& r) {
  const bool sends = route_.sends_from_slots(r.micro_step);
  const bool adds = r.micro_step > 0;
  if (at(r.unit).keeps_gradient_on_host) fetch_sum(r.unit, adds);
  if (r.slot >= 0) {
    const Operand slot{.buffer = at(r.unit).gradient_slot, .unit = r.unit};
    Operand sum = gradient(r.unit, {});
    if (route_.adds_up || !sends) {
      sum.adds = adds;
      actions_.push_back({.operation = &operations::kCast, .reads = {slot}, .writes = {sum}});
      sum.adds = false;
      if (sends) {
        actions_.push_back({.operation = &operations::kCast, .reads = {sum}, .writes = {slot}});
      }
    }
    if (sends) {
      sum.sharded = route_.sent_axes;
      sum.adds = route_.every && adds;
      actions_.push_back({.operation = &operations::kReduceScatter,
                          .lane = Lane::kReduce,
                          .reads = {slot},
                          .writes = {sum},
                          .axes = route_.sent_axes});
    }
  }
  if (trains() && r.micro_step == schedule_.micro_steps - 1) return finish_gradient(r.unit);
  if (at(r.unit).keeps_gradient_on_host) {
    keep_sum(r.unit, sends ? route_.sent_axes : AxisSet());
  }
}

/// The next slot for sums, with what earlier micro-steps have left on the host, if they have.
void Emission::fetch_sum(int unit, bool begun) {
  UnitPlace& place = at(unit);
  place.gradient = sum_slots_.next();
  if (!begun) return;
  actions_.push_back({.operation = &operations::kCopy,
                      .lane = Lane::kCopyIn,
                      .reads = {{place.host_gradient, unit, place.kept_as}},
                      .writes = {{place.gradient, unit, place.kept_as}}});
}

/// The sum goes to the host; of a slot, the next may have it.
void Emission::keep_sum(int unit, AxisSet sharded) {
  UnitPlace& place = at(unit);
  place.kept_as = sharded;
  actions_.push_back({.operation = &operations::kCopy,
                      .lane = Lane::kCopyOut,
                      .reads = {gradient(unit, sharded)},
                      .writes = {{place.host_gradient, unit, sharded}}});
}

/// What remains to be reduced once per step, and this rank's share of the norm.
void Emission::finish_gradient(int unit) {
  const AxisSet all = route_.all_axes, optimizer = route_.optimizer_axes;
  const AxisSet replicas = all - optimizer;
  const auto collective = [&](const Operation& operation, AxisSet axes, AxisSet from, AxisSet to) {
    if (axes.empty()) return;
    actions_.push_back({.operation = &operation,
                        .lane = Lane::kReduce,
                        .reads = {gradient(unit, from)},
                        .writes = {gradient(unit, to)},
                        .axes = axes});
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
  const UnitPlace& place = at(unit);
  if (place.is_updated_on_host && !place.keeps_gradient_on_host) keep_sum(unit, optimizer);
  Operand norm = norm_;
  norm.adds = true;
  actions_.push_back({.operation = &kNormPartial,
                      .lane = Lane::kReduce,
                      .reads = {gradient(unit, all)},
                      .writes = {norm}});
  if (place.keeps_gradient_on_host) keep_sum(unit, optimizer);
}

void Emission::copy_state(Lane lane, int from, int to, int unit) {
  actions_.push_back({.operation = &operations::kCopy,
                      .lane = lane,
                      .reads = {{from, unit, route_.optimizer_axes}},
                      .writes = {{to, unit, route_.optimizer_axes}}});
}

/// Where the optimizer finds master weights, its tensors and parameters on disk: their buffers, or
/// slots to which they are read. Parameters too, if it only writes them: a step that is skipped
/// leaves them.
std::vector<int> Emission::read_state(const UnitPlace& unit) {
  std::vector<int> held = unit.optimizer;
  bool reads = false;
  for (int& buffer : held) {
    const ScheduleBuffer& state = schedule_.buffers[static_cast<std::size_t>(buffer)];
    if (state.tier != Tier::kDisk) continue;
    const std::vector<int>& slots = state_slots_.at({state.role, state.tensor});
    const int slot = slots[next_state_turn_ % slots.size()];
    copy_state(Lane::kDiskIn, buffer, slot, state.unit);
    buffer = slot;
    reads = true;
  }
  if (reads) ++next_state_turn_;
  return held;
}

/// What was read from disk goes back, but for parameters of which ranks have updated parts.
void Emission::write_state(int u, const std::vector<int>& held) {
  const UnitPlace& unit = at(u);
  for (std::size_t i = 0; i < held.size(); ++i) {
    const bool is_part = schedule_.role(held[i]) == Role::kParameter && updates_parts();
    if (held[i] != unit.optimizer[i] && !is_part) {
      copy_state(Lane::kDiskOut, held[i], unit.optimizer[i], u);
    }
  }
}

/// The part of a unit's parameters that this rank has updated, in buffer `from`, to all ranks that
/// keep it: where they are on the device, or by a slot there.
void Emission::gather_updated(int u, int from) {
  if (!updates_parts()) return;
  const AxisSet parameter = schedule_.placement.parameter, optimizer = route_.optimizer_axes;
  const UnitPlace& unit = at(u);
  const int home = unit.parameters.front();
  const auto copy = [&](Lane lane, const Operand& source, const Operand& target) {
    actions_.push_back(
        {.operation = &operations::kCopy, .lane = lane, .reads = {source}, .writes = {target}});
  };
  int gathered = home;
  if (unit.home != Tier::kDevice) {
    gathered = update_slots_.next();
    copy(Lane::kCopyIn, {from, u, optimizer}, {gathered, u, optimizer});
  }
  const Operand all{gathered, u, parameter};
  actions_.push_back({.operation = &operations::kAllGather,
                      .lane = Lane::kGather,
                      .reads = {{gathered, u, optimizer}},
                      .writes = {all},
                      .axes = optimizer - parameter});
  if (unit.home == Tier::kHost) copy(Lane::kCopyOut, all, {home, u, parameter});
  if (unit.home != Tier::kDisk) return;
  const int staging = host_update_slots_.next();
  copy(Lane::kCopyOut, all, {staging, u, parameter});
  copy(Lane::kDiskOut, {staging, u, parameter}, {home, u, parameter});
}

void Emission::emit_updates() {
  Action results{.operation = &operations::kResults,
                 .lane = Lane::kReduce,
                 .reads = {tokens_, loss_},
                 .writes = {results_}};
  if (trains()) results.reads.push_back(norm_);
  actions_.push_back(std::move(results));
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (at(u).gradient >= 0) emit_update(u);  // else there is nothing to train
  }
}

void Emission::emit_update(int u) {
  const UnitPlace& unit = at(u);
  const Operand updated{unit.parameters.front(), u, route_.optimizer_axes};
  if (unit.keeps_gradient_on_host && !unit.is_updated_on_host) fetch_sum(u, true);
  const int sum = unit.is_updated_on_host ? unit.host_gradient : unit.gradient;
  const bool goes_back = unit.is_updated_on_host && unit.home == Tier::kDevice;
  Action step{.operation = &operations::kOptimizerStep,
              .lane = unit.is_updated_on_host ? Lane::kOptimizer : optimizer_lane_,
              .reads = {{sum, u, route_.optimizer_axes}, results_}};
  if (unit.home != Tier::kDisk) {
    if (!goes_back) step.writes.push_back(updated);
    if (unit.master < 0) step.reads.push_back(updated);
  }
  const std::vector<int> held = read_state(unit);
  int master = -1;
  for (const int buffer : held) {
    step.reads.push_back({buffer, u, route_.optimizer_axes});
    step.writes.push_back({buffer, u, route_.optimizer_axes});
    if (schedule_.role(buffer) == Role::kMaster) master = buffer;
  }
  if (unit.host_parameter >= 0) {
    step.writes.push_back({unit.host_parameter, u, route_.optimizer_axes});
  }
  actions_.push_back(std::move(step));
  if (goes_back) {
    const int from = unit.host_parameter >= 0 ? unit.host_parameter : master;
    copy_state(Lane::kCopyIn, from, updated.buffer, u);
  }
  write_state(u, held);
  gather_updated(u, unit.home == Tier::kDisk ? held.front() : updated.buffer);
}

}  // namespace

void emit_actions(Schedule& schedule, const PlanOptions& options, const GradientRoute& route,
                  const std::vector<Compute>& computes, const Residencies& residencies) {
  Emission(schedule, options, route, computes, residencies).run();
}

}  // namespace tessera
