#include "passes/tier_updates.h"

#include <map>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

int micro_step_of(const Schedule& schedule, const Action& action) {
  for (const std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
    for (const Operand& operand : *operands) {
      if (is_written_gradient(schedule.buffer(operand))) return schedule.buffer(operand).micro_step;
    }
  }
  return -1;
}

}  // namespace

void TierUpdates::list_flats() {
  const std::vector<bool> on_host =
      last_trained_units(schedule_.units, schedule_.offload_gradients, schedule_.pipeline.rank);
  for (std::size_t u = 0; u < flats_.size(); ++u) {
    for (FlatTiers& flat : flats_[u]) flat.keeps_gradient_on_host = on_host[u];
  }
  for (int b = 0; b < static_cast<int>(schedule_.buffers.size()); ++b) {
    const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(b)];
    if (buffer.unit < 0 || !schedule_.flat(buffer.unit, buffer.flat).trainable) continue;
    FlatTiers& flat = at({buffer.unit, buffer.flat});
    const bool is_copy = buffer.kind == BufferKind::kCopy;
    const bool is_parameter = buffer.role == Role::kParameter && !is_copy;
    if (buffer.role == Role::kGradient) flat.gradient = b;
    if (buffer.role == Role::kParameter) (is_copy ? flat.host_parameter : flat.parameter) = b;
    if (buffer.role == Role::kMaster) flat.master = b;
    if (is_parameter) flat.home = buffer.tier;
    if (buffer.role == Role::kMaster || buffer.role == Role::kOptimizer ||
        (is_parameter && buffer.tier == Tier::kDisk)) {
      flat.held.push_back(b);
    }
    if (buffer.persistent && buffer.tier != Tier::kDevice) flat.is_updated_on_host = true;
  }
}

/// Where the optimizer reads gradients of what has its state on the host, and where gradients are
/// from one micro-step to the next.
void TierUpdates::add_host_gradients() {
  for (int u = 0; u < static_cast<int>(flats_.size()); ++u) {
    for (int f = 0; f < static_cast<int>(flats_[static_cast<std::size_t>(u)].size()); ++f) {
      FlatTiers& flat = at({u, f});
      if (flat.gradient < 0 || (!flat.is_updated_on_host && !flat.keeps_gradient_on_host)) continue;
      const bool adds_there = flat.keeps_gradient_on_host && schedule_.micro_steps > 1;
      const AxisSet sharded =
          adds_there ? schedule_.buffers[static_cast<std::size_t>(flat.gradient)].sharded
                     : schedule_.placement.optimizer;
      const ScheduleUnit& unit = schedule_.units[static_cast<std::size_t>(u)];
      flat.host_gradient =
          add_buffer(schedule_, {.name = name_beside(unit, schedule_.flat(u, f), "gradient@host"),
                                 .kind = BufferKind::kCopy,
                                 .role = Role::kGradient,
                                 .unit = u,
                                 .flat = f,
                                 .sharded = sharded,
                                 .numel = schedule_.flat(u, f).numel / schedule_.mesh.size(sharded),
                                 .tier = Tier::kHost});
    }
  }
}

/// The flat parameter whose gradient buffer an action reads or writes, if it is to be on the host.
std::optional<FlatId> TierUpdates::sum_of(const Action& action) const {
  for (const std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
    for (const Operand& operand : *operands) {
      if (!schedule_.is_of_kind(operand, BufferKind::kGradient)) continue;
      const FlatId id = id_of(schedule_, operand);
      if (at(id).keeps_gradient_on_host) return id;
    }
  }
  return std::nullopt;
}

void TierUpdates::find_last_uses() {
  last_use_.assign(schedule_.actions.size(), false);
  struct Use {
    std::size_t action;
    int micro_step;
  };
  std::map<FlatId, Use> last;
  for (std::size_t a = 0; a < schedule_.actions.size(); ++a) {
    const Action& action = schedule_.actions[a];
    const std::optional<FlatId> id = sum_of(action);
    if (!id || action.operation == &operations::kOptimizerStep) continue;
    Use& use = last.try_emplace(*id, Use{0, -1}).first->second;
    const int named = micro_step_of(schedule_, action);
    const int micro_step = named < 0 ? use.micro_step : named;
    if (micro_step == use.micro_step) last_use_[use.action] = false;
    use = {a, micro_step};
    last_use_[a] = true;
  }
}

void TierUpdates::copy(Lane lane, std::vector<Operand> from, const Operand& to) {
  actions_.push_back(
      {.operation = &operations::kCopy, .lane = lane, .reads = std::move(from), .writes = {to}});
}

/// A buffer for the sum, with what earlier micro-steps have left on the host, if they have.
void TierUpdates::fetch_sum(const FlatId& id, int micro_step) {
  FlatTiers& flat = at(id);
  const ScheduleBuffer like = schedule_.buffers[static_cast<std::size_t>(flat.gradient)];
  flat.micro_step = micro_step;
  flat.sum = add_buffer(schedule_, {.name = name_for(id, "sum"),
                                    .kind = BufferKind::kSumSlot,
                                    .role = Role::kGradient,
                                    .sharded = like.sharded,
                                    .numel = like.numel});
  if (micro_step == 0) return;
  copy(Lane::kCopyIn, {part(flat.host_gradient, id, flat.kept_as)},
       part(flat.sum, id, flat.kept_as));
}

void TierUpdates::keep_sum(const FlatId& id, AxisSet sharded) {
  FlatTiers& flat = at(id);
  flat.kept_as = sharded;
  const int from = flat.keeps_gradient_on_host ? flat.sum : flat.gradient;
  copy(Lane::kCopyOut, {part(from, id, sharded)}, part(flat.host_gradient, id, sharded));
}

/// In an action, another buffer for the gradient.
void TierUpdates::use_buffer(Action& action, int from, int to, const FlatId& id) const {
  for (std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
    for (Operand& operand : *operands) {
      if (operand.buffer != from) continue;
      operand.buffer = to;
      schedule_.set_flats(operand, {id.flat});
    }
  }
}

/// An action on a gradient that is kept on the host.
void TierUpdates::use_sum(Action action, std::size_t index) {
  const FlatId id = *sum_of(action);
  FlatTiers& flat = at(id);
  const int named = micro_step_of(schedule_, action);
  if (named >= 0 && named != flat.micro_step) fetch_sum(id, named);
  use_buffer(action, flat.gradient, flat.sum, id);
  const bool ends = action.operation == &operations::kNormPartial;
  const AxisSet sharded = ends ? schedule_.placement.optimizer : action.writes.front().sharded;
  actions_.push_back(std::move(action));
  if (last_use_[index]) keep_sum(id, sharded);
}

/// Where the optimizer finds what it holds: its buffers, or copies of those on disk.
std::vector<int> TierUpdates::read_state(const FlatId& id) {
  std::vector<int> held = at(id).held;
  for (int& buffer : held) {
    const ScheduleBuffer state = schedule_.buffers[static_cast<std::size_t>(buffer)];
    if (state.tier != Tier::kDisk) continue;
    const AxisSet optimizer = schedule_.placement.optimizer;
    const int slot =
        add_buffer(schedule_, {.name = state.name + "@step",
                               .kind = BufferKind::kStateSlot,
                               .role = state.role,
                               .tensor = state.tensor,
                               .format = state.format,
                               .block = state.block,
                               .numel = schedule_.own_numel(state) / schedule_.mesh.size(optimizer),
                               .tier = Tier::kHost});
    copy(Lane::kDiskIn, {optimizer_part(buffer, id)}, optimizer_part(slot, id));
    buffer = slot;
  }
  return held;
}

/// State that was read from disk goes back, but for parameters of which ranks have updated parts.
void TierUpdates::write_state(const FlatId& id, const std::vector<int>& held) {
  const bool in_parts = schedule_.placement.parameter != schedule_.placement.optimizer;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const int home = at(id).held[i];
    if (held[i] == home || (schedule_.role(home) == Role::kParameter && in_parts)) continue;
    copy(Lane::kDiskOut, {optimizer_part(held[i], id)}, optimizer_part(home, id));
  }
}

/// The part that this rank has updated, in buffer `from`, to all ranks that keep it: where they are
/// on the device, or by a slot there.
void TierUpdates::gather_updated(const FlatId& id, int from) {
  const AxisSet parameter = schedule_.placement.parameter;
  const AxisSet optimizer = schedule_.placement.optimizer;
  if (parameter == optimizer) return;
  const FlatTiers& flat = at(id);
  const auto add = [&](Tier tier) {
    return add_buffer(schedule_,
                      {.name = name_for(id, "updated"),
                       .kind = BufferKind::kUpdateSlot,
                       .role = Role::kParameter,
                       .format = schedule_.flat(id).format,
                       .sharded = parameter,
                       .numel = schedule_.flat(id).numel / schedule_.mesh.size(parameter),
                       .tier = tier});
  };
  int gathered = flat.parameter;
  if (flat.home != Tier::kDevice) {
    gathered = add(Tier::kDevice);
    copy(Lane::kCopyIn, {optimizer_part(from, id)}, optimizer_part(gathered, id));
  }
  const Operand all = part(gathered, id, parameter);
  actions_.push_back({.operation = &operations::kAllGather,
                      .lane = Lane::kGather,
                      .reads = {optimizer_part(gathered, id)},
                      .writes = {all},
                      .axes = optimizer - parameter});
  const Operand home = part(flat.parameter, id, parameter);
  if (flat.home == Tier::kHost) copy(Lane::kCopyOut, {all}, home);
  if (flat.home != Tier::kDisk) return;
  const Operand staging = part(add(Tier::kHost), id, parameter);
  copy(Lane::kCopyOut, {all}, staging);
  copy(Lane::kDiskOut, {staging}, home);
}

void TierUpdates::step_on_host(const FlatId& id, const Operand& results) {
  const FlatTiers flat = at(id);
  const Operand updated = optimizer_part(flat.parameter, id);
  const bool goes_back = flat.home == Tier::kDevice;
  Action step{.operation = &operations::kOptimizerStep,
              .lane = Lane::kOptimizer,
              .reads = {optimizer_part(flat.host_gradient, id), results}};
  if (flat.home != Tier::kDisk) {
    if (!goes_back) step.writes.push_back(updated);
    if (flat.master < 0) step.reads.push_back(updated);
  }
  const std::vector<int> held = read_state(id);
  int master = -1;
  for (const int buffer : held) {
    step.reads.push_back(optimizer_part(buffer, id));
    step.writes.push_back(optimizer_part(buffer, id));
    if (schedule_.role(buffer) == Role::kMaster) master = buffer;
  }
  if (flat.host_parameter >= 0) step.writes.push_back(optimizer_part(flat.host_parameter, id));
  actions_.push_back(std::move(step));
  if (goes_back) {
    const int from = flat.host_parameter >= 0 ? flat.host_parameter : master;
    copy(Lane::kCopyIn, {optimizer_part(from, id)}, updated);
  }
  write_state(id, held);
  gather_updated(id, flat.home == Tier::kDisk ? held.front() : flat.parameter);
}

void TierUpdates::step(Action action) {
  const FlatId id = id_of(schedule_, action.reads.front());
  if (at(id).is_updated_on_host) return step_on_host(id, action.reads[1]);
  if (at(id).keeps_gradient_on_host) {
    fetch_sum(id, schedule_.micro_steps);
    use_buffer(action, at(id).gradient, at(id).sum, id);
  }
  actions_.push_back(std::move(action));
}

/// Updated parameters that are sent from the device, and are kept elsewhere: a copy.
void TierUpdates::bring_message(Operand& sent) {
  const ScheduleBuffer home = schedule_.buffer(sent);
  if (!is_flat_parameter(home) || home.tier == Tier::kDevice) return;
  const FlatId id = id_of(schedule_, sent);
  const auto add = [&](Tier tier) {
    return part(add_buffer(schedule_, {.name = name_for(id, "sent"),
                                       .kind = BufferKind::kUpdateSlot,
                                       .role = Role::kParameter,
                                       .format = home.format,
                                       .sharded = home.sharded,
                                       .numel = home.numel,
                                       .tier = tier}),
                id, home.sharded);
  };
  Operand from = part(sent.buffer, id, home.sharded);
  if (home.tier == Tier::kDisk) {
    const Operand staging = add(Tier::kHost);
    copy(Lane::kDiskIn, {from}, staging);
    from = staging;
  }
  sent = add(Tier::kDevice);
  copy(Lane::kCopyIn, {from}, sent);
}

void TierUpdates::begin() {
  list_flats();
  add_host_gradients();
  find_last_uses();
}

void TierUpdates::add(Action action, std::size_t index) {
  const bool gathers = action.operation == &operations::kAllGather;
  if (gathers && schedule_.is_of_kind(action.writes.front(), BufferKind::kState)) {
    // Parameters that the host has updated are gathered with their optimizer step.
    if (at(id_of(schedule_, action.writes.front())).is_updated_on_host) return;
  }
  if (action.operation == &operations::kOptimizerStep) return step(std::move(action));
  if (action.operation == &operations::kSend) bring_message(action.reads.front());
  if (sum_of(action)) return use_sum(std::move(action), index);
  if (action.operation == &operations::kNormPartial) {
    const FlatId id = id_of(schedule_, action.reads.front());
    if (at(id).is_updated_on_host) keep_sum(id, schedule_.placement.optimizer);
  }
  actions_.push_back(std::move(action));
}

}  // namespace tessera
