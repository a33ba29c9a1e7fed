#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "pass_tools.h"
#include "tessera/core/error.h"
#include "tessera/sharding/passes.h"

namespace tessera {
namespace {

Tier tier_of_buffer(const Schedule& schedule, int buffer) {
  return schedule.buffers[static_cast<std::size_t>(buffer)].tier;
}

int micro_step_of(const Schedule& schedule, const Action& action) {
  for (const std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
    for (const Operand& operand : *operands) {
      if (is_written_gradient(schedule.buffer(operand))) return schedule.buffer(operand).micro_step;
    }
  }
  return -1;
}

class Placing {
 public:
  explicit Placing(Schedule& schedule) : schedule_(schedule), units_(schedule.units.size()) {}

  void run();

 private:
  /// Where a unit is kept, and its gradient at this point of the walk.
  struct UnitPlace {
    int parameter = -1;
    int master = -1;
    std::vector<int> held{};  ///< by the optimizer: parameters on disk, master weights, its tensors
    int gradient = -1;        ///< its buffer on the device
    int host_gradient = -1;   ///< where the host has it, if it has
    int host_parameter = -1;  ///< written there, and copied to the device; -1: none
    Tier home = Tier::kDevice;  ///< of what is trained
    bool is_updated_on_host = false;
    bool keeps_gradient_on_host = false;
    int sum = -1;         ///< where it is kept on the host, the buffer that has it just now
    int micro_step = -1;  ///< to which that belongs
    AxisSet kept_as{};    ///< along which the gradient on the host is sharded
  };

  void list_units();
  void add_host_gradients();
  void add_inputs();
  void find_last_uses();
  void pass(Action action);
  void gather(Action action);
  Operand bring(std::vector<Operand> from, const Action& pass);
  std::vector<Operand> bring_closer(std::vector<Operand> from, bool to_device);
  Operand decode(const Operand& quantized, const Action& pass);
  Operand add_content(const Operand& like, BufferKind kind, std::int64_t numel, Tier tier,
                      int micro_step = -1);
  void copy(Lane lane, std::vector<Operand> from, const Operand& to);
  void use_sum(Action action, std::size_t index);
  void fetch_sum(int unit, int micro_step);
  void keep_sum(int unit, AxisSet sharded);
  void step(Action action);
  void step_on_host(int unit, const Operand& results);
  std::vector<int> read_state(int unit);
  void write_state(int unit, const std::vector<int>& held);
  void gather_updated(int unit, int from);
  int sum_of(const Action& action) const;
  bool leaves(int layer) const {
    return !schedule_.offload_activations.empty() && schedule_.keeps_input(layer);
  }
  UnitPlace& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  const ScheduleUnit& unit_at(int unit) const {
    return schedule_.units[static_cast<std::size_t>(unit)];
  }
  Operand optimizer_part(int buffer, int unit) const {
    return {buffer, unit, schedule_.placement.optimizer};
  }

  Schedule& schedule_;
  std::vector<UnitPlace> units_;
  std::vector<int> inputs_;     ///< by layer: its buffer on the host
  std::vector<bool> last_use_;  ///< by action: of a sum in its micro-step
  std::vector<Action> actions_;
};

void Placing::list_units() {
  const std::vector<bool> on_host =
      last_trained_units(schedule_.units, schedule_.offload_gradients);
  for (std::size_t u = 0; u < units_.size(); ++u) units_[u].keeps_gradient_on_host = on_host[u];
  for (int b = 0; b < static_cast<int>(schedule_.buffers.size()); ++b) {
    const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(b)];
    if (buffer.unit < 0) continue;
    UnitPlace& unit = at(buffer.unit);
    const bool is_copy = buffer.kind == BufferKind::kCopy;
    if (buffer.role == Role::kGradient) unit.gradient = b;
    if (buffer.role == Role::kParameter) (is_copy ? unit.host_parameter : unit.parameter) = b;
    if (buffer.role == Role::kMaster) unit.master = b;
    const bool is_parameter = buffer.role == Role::kParameter && !is_copy;
    if (is_parameter) unit.home = buffer.tier;
    if (buffer.role == Role::kMaster || buffer.role == Role::kOptimizer ||
        (is_parameter && buffer.tier == Tier::kDisk)) {
      unit.held.push_back(b);
    }
    const bool is_trained =
        buffer.persistent && buffer.role != Role::kFrozen && buffer.role != Role::kQuantized;
    if (is_trained && buffer.tier != Tier::kDevice) unit.is_updated_on_host = true;
  }
}

/// Where the optimizer reads gradients of units whose state is on the host, and where gradients are
/// from one micro-step to the next.
void Placing::add_host_gradients() {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    UnitPlace& unit = at(u);
    if (unit.gradient < 0 || (!unit.is_updated_on_host && !unit.keeps_gradient_on_host)) continue;
    const bool adds_there = unit.keeps_gradient_on_host && schedule_.micro_steps > 1;
    const AxisSet sharded = adds_there
                                ? schedule_.buffers[static_cast<std::size_t>(unit.gradient)].sharded
                                : schedule_.placement.optimizer;
    unit.host_gradient =
        add_buffer(schedule_, {.name = unit_at(u).name + ".gradient@host",
                               .kind = BufferKind::kCopy,
                               .role = Role::kGradient,
                               .unit = u,
                               .sharded = sharded,
                               .numel = unit_at(u).trainable_numel / schedule_.mesh.size(sharded),
                               .tier = Tier::kHost});
  }
}

void Placing::add_inputs() {
  inputs_.assign(schedule_.layers.size(), -1);
  for (int l = 0; l < static_cast<int>(inputs_.size()); ++l) {
    const auto place = static_cast<std::size_t>(l);
    if (!leaves(l)) continue;
    inputs_[place] = add_buffer(schedule_, {.name = schedule_.layers[place].name + ".input@host",
                                            .kind = BufferKind::kInput,
                                            .role = Role::kActivation,
                                            .layer = l,
                                            .format = schedule_.parameter_dtype,
                                            .numel = schedule_.offload_activations[place],
                                            .tier = Tier::kHost});
  }
}

/// The unit whose gradient buffer an action reads or writes, if it is to be on the host; -1: none.
int Placing::sum_of(const Action& action) const {
  for (const std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
    for (const Operand& operand : *operands) {
      if (schedule_.is_of_kind(operand, BufferKind::kGradient) &&
          units_[static_cast<std::size_t>(operand.unit)].keeps_gradient_on_host) {
        return operand.unit;
      }
    }
  }
  return -1;
}

void Placing::find_last_uses() {
  last_use_.assign(schedule_.actions.size(), false);
  struct Use {
    std::size_t action;
    int micro_step;
  };
  std::vector<Use> last(units_.size(), {0, -1});
  for (std::size_t a = 0; a < schedule_.actions.size(); ++a) {
    const Action& action = schedule_.actions[a];
    const int unit = sum_of(action);
    if (unit < 0 || action.operation == &operations::kOptimizerStep) continue;
    Use& use = last[static_cast<std::size_t>(unit)];
    const int named = micro_step_of(schedule_, action);
    const int micro_step = named < 0 ? use.micro_step : named;
    if (micro_step == use.micro_step) last_use_[use.action] = false;
    use = {a, micro_step};
    last_use_[a] = true;
  }
}

void Placing::copy(Lane lane, std::vector<Operand> from, const Operand& to) {
  actions_.push_back(
      {.operation = &operations::kCopy, .lane = lane, .reads = std::move(from), .writes = {to}});
}

/// An operand of a new buffer for what `like` is of.
Operand Placing::add_content(const Operand& like, BufferKind kind, std::int64_t numel, Tier tier,
                             int micro_step) {
  const ScheduleBuffer& source = schedule_.buffer(like);
  const bool quantized = source.role == Role::kQuantized;
  Operand content = like;
  content.buffer = add_buffer(schedule_, {.name = concat(unit_at(like.unit).name, '.',
                                                         to_string(kind), schedule_.buffers.size()),
                                          .kind = kind,
                                          .role = quantized ? Role::kQuantized : Role::kParameter,
                                          .micro_step = micro_step,
                                          .format = source.format,
                                          .numel = numel,
                                          .tier = tier});
  return content;
}

/// From the disk to the host, and on to the device.
std::vector<Operand> Placing::bring_closer(std::vector<Operand> from, bool to_device) {
  std::int64_t numel = 0;
  for (const Operand& flat : from) {
    numel += schedule_.unit_numel(flat.unit, schedule_.buffer(flat));
  }
  numel /= schedule_.mesh.size(from.front().sharded);
  if (tier_of_buffer(schedule_, from.front().buffer) == Tier::kDisk) {
    const Operand staging = add_content(from.front(), BufferKind::kStagingSlot, numel, Tier::kHost);
    copy(Lane::kDiskIn, std::move(from), staging);
    from = {staging};
  }
  if (to_device) {
    const Operand part = add_content(from.front(), BufferKind::kShardSlot, numel, Tier::kDevice);
    copy(Lane::kCopyIn, std::move(from), part);
    from = {part};
  }
  return from;
}

/// An all-gather of what is not on the device: of a copy.
void Placing::gather(Action action) {
  const Operand first = action.reads.front();
  if (is_flat_parameter(schedule_.buffer(first)) &&
      tier_of_buffer(schedule_, first.buffer) != Tier::kDevice) {
    action.reads = bring_closer(std::move(action.reads), true);
  }
  actions_.push_back(std::move(action));
}

/// What every rank has whole, but not on the device: a copy.
Operand Placing::bring(std::vector<Operand> from, const Action& pass) {
  std::int64_t numel = 0;
  for (const Operand& flat : from) {
    numel += schedule_.unit_numel(flat.unit, schedule_.buffer(flat));
  }
  const Operand whole =
      add_content(from.front(), BufferKind::kWholeSlot, numel, Tier::kDevice, pass.micro_step);
  copy(Lane::kCopyIn, bring_closer(std::move(from), false), whole);
  return whole;
}

Operand Placing::decode(const Operand& quantized, const Action& pass) {
  const Operand decoded{
      .buffer = add_buffer(
          schedule_, {.name = concat(unit_at(quantized.unit).name, ".w", schedule_.buffers.size()),
                      .kind = BufferKind::kWholeSlot,
                      .role = Role::kDecoded,
                      .micro_step = pass.micro_step,
                      .format = schedule_.parameter_dtype,
                      .numel = unit_at(quantized.unit).decoded_numel}),
      .unit = quantized.unit};
  actions_.push_back(
      {.operation = &operations::kDecode, .reads = {quantized}, .writes = {decoded}});
  return decoded;
}

void Placing::pass(Action action) {
  std::vector<Operand> reads, gone;
  for (std::size_t i = 0; i < action.reads.size();) {
    const int unit = action.reads[i].unit;
    if (unit < 0) {
      reads.push_back(action.reads[i++]);
      continue;
    }
    std::vector<Operand> away, here;
    for (; i < action.reads.size() && action.reads[i].unit == unit; ++i) {
      Operand flat = action.reads[i];
      const bool is_away = tier_of_buffer(schedule_, flat.buffer) != Tier::kDevice;
      if (schedule_.role(flat.buffer) == Role::kQuantized) {
        if (is_away) gone.push_back(flat = bring({flat}, action));
        gone.push_back(decode(flat, action));
        reads.push_back(gone.back());
      } else {
        (is_away ? away : here).push_back(flat);
      }
    }
    if (!away.empty()) {
      gone.push_back(bring(std::move(away), action));
      reads.push_back(gone.back());
    }
    reads.insert(reads.end(), here.begin(), here.end());
  }
  action.reads = std::move(reads);
  const bool is_forward = action.operation == &operations::kForward;
  const bool is_backward = action.operation == &operations::kBackward;
  const int layer = action.layer;
  const Operand there{.buffer = inputs_[static_cast<std::size_t>(layer)]};
  const auto push = [&](const Operation& operation, const Operand& written) {
    actions_.push_back({.operation = &operation, .writes = {written}});
  };
  if (is_backward && leaves(layer)) {
    const auto input = std::ranges::find_if(action.reads, [&](const Operand& operand) {
      return schedule_.is_of_kind(operand, BufferKind::kActivation);
    });
    push(operations::kReserve, *input);
    copy(Lane::kCopyIn, {there}, *input);
  }
  const Operand output = action.writes.front();
  actions_.push_back(std::move(action));
  if (is_forward && leaves(layer)) {
    copy(Lane::kCopyOut, {output}, there);
    push(operations::kRelease, output);
  }
  for (const Operand& content : gone) push(operations::kReshard, content);
}

/// A buffer for the unit's sum, with what earlier micro-steps have left on the host, if they have.
void Placing::fetch_sum(int u, int micro_step) {
  UnitPlace& unit = at(u);
  const ScheduleBuffer like = schedule_.buffers[static_cast<std::size_t>(unit.gradient)];
  unit.micro_step = micro_step;
  unit.sum =
      add_buffer(schedule_, {.name = concat(unit_at(u).name, ".sum", schedule_.buffers.size()),
                             .kind = BufferKind::kSumSlot,
                             .role = Role::kGradient,
                             .sharded = like.sharded,
                             .numel = like.numel});
  if (micro_step == 0) return;
  copy(Lane::kCopyIn, {{unit.host_gradient, u, unit.kept_as}}, {unit.sum, u, unit.kept_as});
}

void Placing::keep_sum(int u, AxisSet sharded) {
  UnitPlace& unit = at(u);
  unit.kept_as = sharded;
  const int from = unit.keeps_gradient_on_host ? unit.sum : unit.gradient;
  copy(Lane::kCopyOut, {{from, u, sharded}}, {unit.host_gradient, u, sharded});
}

/// An action on the gradient of a unit that keeps it on the host.
void Placing::use_sum(Action action, std::size_t index) {
  const int u = sum_of(action);
  UnitPlace& unit = at(u);
  const int named = micro_step_of(schedule_, action);
  if (named >= 0 && named != unit.micro_step) fetch_sum(u, named);
  replace_buffer(action, unit.gradient, unit.sum);
  const bool ends = action.operation == &operations::kNormPartial;
  const AxisSet sharded = ends ? schedule_.placement.optimizer : action.writes.front().sharded;
  actions_.push_back(std::move(action));
  if (last_use_[index]) keep_sum(u, sharded);
}

/// Where the optimizer finds what it holds of a unit: its buffers, or copies of those on disk.
std::vector<int> Placing::read_state(int u) {
  std::vector<int> held = at(u).held;
  for (int& buffer : held) {
    const ScheduleBuffer state = schedule_.buffers[static_cast<std::size_t>(buffer)];
    if (state.tier != Tier::kDisk) continue;
    const AxisSet optimizer = schedule_.placement.optimizer;
    const int slot = add_buffer(
        schedule_, {.name = state.name + "@step",
                    .kind = BufferKind::kStateSlot,
                    .role = state.role,
                    .tensor = state.tensor,
                    .format = state.format,
                    .block = state.block,
                    .numel = schedule_.unit_numel(u, state) / schedule_.mesh.size(optimizer),
                    .tier = Tier::kHost});
    copy(Lane::kDiskIn, {optimizer_part(buffer, u)}, optimizer_part(slot, u));
    buffer = slot;
  }
  return held;
}

/// What was read from disk goes back, but for parameters of which ranks have updated parts.
void Placing::write_state(int u, const std::vector<int>& held) {
  const bool in_parts = schedule_.placement.parameter != schedule_.placement.optimizer;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const int home = at(u).held[i];
    if (held[i] == home || (schedule_.role(home) == Role::kParameter && in_parts)) continue;
    copy(Lane::kDiskOut, {optimizer_part(held[i], u)}, optimizer_part(home, u));
  }
}

/// The part of a unit's parameters that this rank has updated, in buffer `from`, to all ranks that
/// keep it: where they are on the device, or by a slot there.
void Placing::gather_updated(int u, int from) {
  const AxisSet parameter = schedule_.placement.parameter,
                optimizer = schedule_.placement.optimizer;
  if (parameter == optimizer) return;
  const UnitPlace& unit = at(u);
  const auto add = [&](Tier tier) {
    return add_buffer(schedule_,
                      {.name = concat(unit_at(u).name, ".updated", schedule_.buffers.size()),
                       .kind = BufferKind::kUpdateSlot,
                       .role = Role::kParameter,
                       .format = schedule_.parameter_dtype,
                       .sharded = parameter,
                       .numel = unit_at(u).trainable_numel / schedule_.mesh.size(parameter),
                       .tier = tier});
  };
  int gathered = unit.parameter;
  if (unit.home != Tier::kDevice) {
    gathered = add(Tier::kDevice);
    copy(Lane::kCopyIn, {optimizer_part(from, u)}, optimizer_part(gathered, u));
  }
  const Operand all{gathered, u, parameter};
  actions_.push_back({.operation = &operations::kAllGather,
                      .lane = Lane::kGather,
                      .reads = {optimizer_part(gathered, u)},
                      .writes = {all},
                      .axes = optimizer - parameter});
  const Operand home{unit.parameter, u, parameter};
  if (unit.home == Tier::kHost) copy(Lane::kCopyOut, {all}, home);
  if (unit.home != Tier::kDisk) return;
  const Operand staging{add(Tier::kHost), u, parameter};
  copy(Lane::kCopyOut, {all}, staging);
  copy(Lane::kDiskOut, {staging}, home);
}

void Placing::step_on_host(int u, const Operand& results) {
  const UnitPlace unit = at(u);
  const Operand updated = optimizer_part(unit.parameter, u);
  const bool goes_back = unit.home == Tier::kDevice;
  Action step{.operation = &operations::kOptimizerStep,
              .lane = Lane::kOptimizer,
              .reads = {optimizer_part(unit.host_gradient, u), results}};
  if (unit.home != Tier::kDisk) {
    if (!goes_back) step.writes.push_back(updated);
    if (unit.master < 0) step.reads.push_back(updated);
  }
  const std::vector<int> held = read_state(u);
  int master = -1;
  for (const int buffer : held) {
    step.reads.push_back(optimizer_part(buffer, u));
    step.writes.push_back(optimizer_part(buffer, u));
    if (schedule_.role(buffer) == Role::kMaster) master = buffer;
  }
  if (unit.host_parameter >= 0) step.writes.push_back(optimizer_part(unit.host_parameter, u));
  actions_.push_back(std::move(step));
  if (goes_back) {
    const int from = unit.host_parameter >= 0 ? unit.host_parameter : master;
    copy(Lane::kCopyIn, {optimizer_part(from, u)}, updated);
  }
  write_state(u, held);
  gather_updated(u, unit.home == Tier::kDisk ? held.front() : unit.parameter);
}

void Placing::step(Action action) {
  const int u = action.reads.front().unit;
  if (at(u).is_updated_on_host) return step_on_host(u, action.reads[1]);
  if (at(u).keeps_gradient_on_host) {
    fetch_sum(u, schedule_.micro_steps);
    replace_buffer(action, at(u).gradient, at(u).sum);
  }
  actions_.push_back(std::move(action));
}

void Placing::run() {
  set_state(schedule_, schedule_.state());
  list_units();
  add_host_gradients();
  add_inputs();
  find_last_uses();
  std::vector<Action> given = std::move(schedule_.actions);
  for (std::size_t a = 0; a < given.size(); ++a) {
    Action& action = given[a];
    const bool gathers = action.operation == &operations::kAllGather;
    if (action.operation->is_pass) {
      pass(std::move(action));
    } else if (gathers && schedule_.is_of_kind(action.writes.front(), BufferKind::kWholeSlot)) {
      gather(std::move(action));
    } else if (gathers && schedule_.is_of_kind(action.writes.front(), BufferKind::kState)) {
      // What the host has updated is gathered with its optimizer step.
      if (!at(action.writes.front().unit).is_updated_on_host) actions_.push_back(std::move(action));
    } else if (action.operation == &operations::kOptimizerStep) {
      step(std::move(action));
    } else if (sum_of(action) >= 0) {
      use_sum(std::move(action), a);
    } else {
      const bool is_normed = action.operation == &operations::kNormPartial;
      if (is_normed && at(action.reads.front().unit).is_updated_on_host) {
        keep_sum(action.reads.front().unit, schedule_.placement.optimizer);
      }
      actions_.push_back(std::move(action));
    }
  }
  schedule_.actions = std::move(actions_);
}

}  // namespace

Schedule place(Schedule schedule) {
  Placing(schedule).run();
  return schedule;
}

}  // namespace tessera
