#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
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
  explicit Placing(Schedule& schedule)
      : schedule_(schedule), flats_(per_flat(schedule.units, FlatPlace())) {}

  void run();

 private:
  /// Where a flat parameter is kept, and its gradient at this point of the walk.
  struct FlatPlace {
    int parameter = -1;
    int master = -1;
    std::vector<int> held{};  ///< by the optimizer: parameters on disk, master weights, its tensors
    int gradient = -1;        ///< its buffer on the device
    int host_gradient = -1;   ///< where the host has it, if it has
    int host_parameter = -1;  ///< written there, and copied to the device; -1: none
    Tier home = Tier::kDevice;
    bool is_updated_on_host = false;
    bool keeps_gradient_on_host = false;
    int sum = -1;         ///< where it is kept on the host, the buffer that has it just now
    int micro_step = -1;  ///< to which that belongs
    AxisSet kept_as{};    ///< along which the gradient on the host is sharded
  };

  void list_flats();
  void add_host_gradients();
  void add_inputs();
  void find_last_uses();
  void pass(Action action);
  void gather(Action action);
  Operand bring(std::vector<Operand> from, const Action& pass);
  std::vector<Operand> bring_closer(std::vector<Operand> from, bool to_device);
  Operand decode(const Operand& quantized, const Action& pass);
  Operand add_content(const std::vector<Operand>& like, BufferKind kind, Tier tier,
                      int micro_step = -1);
  void copy(Lane lane, std::vector<Operand> from, const Operand& to);
  void use_buffer(Action& action, int from, int to, const FlatId& id) const;
  void use_sum(Action action, std::size_t index);
  void fetch_sum(const FlatId& id, int micro_step);
  void keep_sum(const FlatId& id, AxisSet sharded);
  void step(Action action);
  void step_on_host(const FlatId& id, const Operand& results);
  std::vector<int> read_state(const FlatId& id);
  void write_state(const FlatId& id, const std::vector<int>& held);
  void gather_updated(const FlatId& id, int from);
  std::optional<FlatId> sum_of(const Action& action) const;
  bool leaves(int layer) const {
    return !schedule_.offload_activations.empty() && schedule_.keeps_input(layer);
  }
  FlatPlace& at(const FlatId& id) {
    return flats_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)];
  }
  const FlatPlace& at(const FlatId& id) const {
    return flats_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)];
  }
  /// The name of a new buffer for something of the flat parameter.
  std::string name_for(const FlatId& id, std::string_view what) const {
    return name_beside(schedule_.units[static_cast<std::size_t>(id.unit)], schedule_.flat(id),
                       concat(what, schedule_.buffers.size()));
  }
  Operand part(int buffer, const FlatId& id, AxisSet sharded) const {
    Operand operand{.buffer = buffer, .unit = id.unit, .sharded = sharded};
    schedule_.set_flats(operand, {id.flat});
    return operand;
  }
  Operand optimizer_part(int buffer, const FlatId& id) const {
    return part(buffer, id, schedule_.placement.optimizer);
  }

  Schedule& schedule_;
  PerFlat<FlatPlace> flats_;
  std::vector<int> inputs_;     ///< by layer: its buffer on the host
  std::vector<bool> last_use_;  ///< by action: of a sum in its micro-step
  std::vector<Action> actions_;
};

void Placing::list_flats() {
  const std::vector<bool> on_host =
      last_trained_units(schedule_.units, schedule_.offload_gradients);
  for (std::size_t u = 0; u < flats_.size(); ++u) {
    for (FlatPlace& flat : flats_[u]) flat.keeps_gradient_on_host = on_host[u];
  }
  for (int b = 0; b < static_cast<int>(schedule_.buffers.size()); ++b) {
    const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(b)];
    if (buffer.unit < 0 || !schedule_.flat(buffer.unit, buffer.flat).trainable) continue;
    FlatPlace& flat = at({buffer.unit, buffer.flat});
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
void Placing::add_host_gradients() {
  for (int u = 0; u < static_cast<int>(flats_.size()); ++u) {
    for (int f = 0; f < static_cast<int>(flats_[static_cast<std::size_t>(u)].size()); ++f) {
      FlatPlace& flat = at({u, f});
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

/// The flat parameter whose gradient buffer an action reads or writes, if it is to be on the host.
std::optional<FlatId> Placing::sum_of(const Action& action) const {
  for (const std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
    for (const Operand& operand : *operands) {
      if (!schedule_.is_of_kind(operand, BufferKind::kGradient)) continue;
      const FlatId id = id_of(schedule_, operand);
      if (at(id).keeps_gradient_on_host) return id;
    }
  }
  return std::nullopt;
}

void Placing::find_last_uses() {
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

void Placing::copy(Lane lane, std::vector<Operand> from, const Operand& to) {
  actions_.push_back(
      {.operation = &operations::kCopy, .lane = lane, .reads = std::move(from), .writes = {to}});
}

/// An operand of a new buffer for what `like` are of.
Operand Placing::add_content(const std::vector<Operand>& like, BufferKind kind, Tier tier,
                             int micro_step) {
  FlatSet flats;
  std::int64_t numel = 0;
  for (const Operand& flat : like) {
    flats = flats | schedule_.flats(flat);
    numel += schedule_.numel(flat);
  }
  Operand content = like.front();
  const std::string& unit = schedule_.units[static_cast<std::size_t>(content.unit)].name;
  content.buffer =
      add_buffer(schedule_, {.name = concat(unit, '.', to_string(kind), schedule_.buffers.size()),
                             .kind = kind,
                             .role = Role::kParameter,
                             .micro_step = micro_step,
                             .format = schedule_.buffer(like.front()).format,
                             .numel = numel / schedule_.mesh.size(content.sharded),
                             .tier = tier});
  schedule_.set_flats(content, flats);
  return content;
}

/// From the disk to the host, and on to the device.
std::vector<Operand> Placing::bring_closer(std::vector<Operand> from, bool to_device) {
  if (tier_of_buffer(schedule_, from.front().buffer) == Tier::kDisk) {
    const Operand staging = add_content(from, BufferKind::kStagingSlot, Tier::kHost);
    copy(Lane::kDiskIn, std::move(from), staging);
    from = {staging};
  }
  if (to_device) {
    const Operand on_device = add_content(from, BufferKind::kShardSlot, Tier::kDevice);
    copy(Lane::kCopyIn, std::move(from), on_device);
    from = {on_device};
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
  const Operand whole = add_content(from, BufferKind::kWholeSlot, Tier::kDevice, pass.micro_step);
  copy(Lane::kCopyIn, bring_closer(std::move(from), false), whole);
  return whole;
}

Operand Placing::decode(const Operand& quantized, const Action& pass) {
  const std::string& unit = schedule_.units[static_cast<std::size_t>(quantized.unit)].name;
  Operand decoded{
      .buffer = add_buffer(schedule_, {.name = concat(unit, ".w", schedule_.buffers.size()),
                                       .kind = BufferKind::kWholeSlot,
                                       .role = Role::kDecoded,
                                       .micro_step = pass.micro_step,
                                       .format = schedule_.parameter_dtype}),
      .unit = quantized.unit};
  schedule_.set_flats(decoded, schedule_.flats(quantized));
  schedule_.buffers.back().numel = schedule_.numel(decoded);
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
    std::vector<std::vector<Operand>> away;  // by format
    std::vector<Operand> here;
    for (; i < action.reads.size() && action.reads[i].unit == unit; ++i) {
      Operand flat = action.reads[i];
      const bool is_away = tier_of_buffer(schedule_, flat.buffer) != Tier::kDevice;
      if (schedule_.flat(id_of(schedule_, flat)).is_quantized()) {
        if (is_away) gone.push_back(flat = bring({flat}, action));
        gone.push_back(decode(flat, action));
        reads.push_back(gone.back());
      } else if (!is_away) {
        here.push_back(flat);
      } else {
        const auto alike = std::ranges::find_if(away, [&](const std::vector<Operand>& flats) {
          return schedule_.buffer(flats.front()).format == schedule_.buffer(flat).format;
        });
        if (alike == away.end()) {
          away.push_back({flat});
        } else {
          alike->push_back(flat);
        }
      }
    }
    for (std::vector<Operand>& flats : away) {
      gone.push_back(bring(std::move(flats), action));
      reads.push_back(gone.back());
    }
    reads.insert(reads.end(), here.begin(), here.end());
  }
  action.reads = std::move(reads);
  const bool is_forward = action.operation == &operations::kForward;
  const bool is_backward = !action.operation->parts.forward && action.operation->parts.backward;
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
  const Operand output = is_forward ? action.writes.front() : Operand();
  actions_.push_back(std::move(action));
  if (is_forward && leaves(layer)) {
    copy(Lane::kCopyOut, {output}, there);
    push(operations::kRelease, output);
  }
  for (const Operand& content : gone) push(operations::kReshard, content);
}

/// A buffer for the sum, with what earlier micro-steps have left on the host, if they have.
void Placing::fetch_sum(const FlatId& id, int micro_step) {
  FlatPlace& flat = at(id);
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

void Placing::keep_sum(const FlatId& id, AxisSet sharded) {
  FlatPlace& flat = at(id);
  flat.kept_as = sharded;
  const int from = flat.keeps_gradient_on_host ? flat.sum : flat.gradient;
  copy(Lane::kCopyOut, {part(from, id, sharded)}, part(flat.host_gradient, id, sharded));
}

/// In an action, another buffer for the gradient.
void Placing::use_buffer(Action& action, int from, int to, const FlatId& id) const {
  for (std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
    for (Operand& operand : *operands) {
      if (operand.buffer != from) continue;
      operand.buffer = to;
      schedule_.set_flats(operand, {id.flat});
    }
  }
}

/// An action on a gradient that is kept on the host.
void Placing::use_sum(Action action, std::size_t index) {
  const FlatId id = *sum_of(action);
  FlatPlace& flat = at(id);
  const int named = micro_step_of(schedule_, action);
  if (named >= 0 && named != flat.micro_step) fetch_sum(id, named);
  use_buffer(action, flat.gradient, flat.sum, id);
  const bool ends = action.operation == &operations::kNormPartial;
  const AxisSet sharded = ends ? schedule_.placement.optimizer : action.writes.front().sharded;
  actions_.push_back(std::move(action));
  if (last_use_[index]) keep_sum(id, sharded);
}

/// Where the optimizer finds what it holds: its buffers, or copies of those on disk.
std::vector<int> Placing::read_state(const FlatId& id) {
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

/// What was read from disk goes back, but for parameters of which ranks have updated parts.
void Placing::write_state(const FlatId& id, const std::vector<int>& held) {
  const bool in_parts = schedule_.placement.parameter != schedule_.placement.optimizer;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const int home = at(id).held[i];
    if (held[i] == home || (schedule_.role(home) == Role::kParameter && in_parts)) continue;
    copy(Lane::kDiskOut, {optimizer_part(held[i], id)}, optimizer_part(home, id));
  }
}

/// The part that this rank has updated, in buffer `from`, to all ranks that keep it: where they are
/// on the device, or by a slot there.
void Placing::gather_updated(const FlatId& id, int from) {
  const AxisSet parameter = schedule_.placement.parameter;
  const AxisSet optimizer = schedule_.placement.optimizer;
  if (parameter == optimizer) return;
  const FlatPlace& flat = at(id);
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

void Placing::step_on_host(const FlatId& id, const Operand& results) {
  const FlatPlace flat = at(id);
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

void Placing::step(Action action) {
  const FlatId id = id_of(schedule_, action.reads.front());
  if (at(id).is_updated_on_host) return step_on_host(id, action.reads[1]);
  if (at(id).keeps_gradient_on_host) {
    fetch_sum(id, schedule_.micro_steps);
    use_buffer(action, at(id).gradient, at(id).sum, id);
  }
  actions_.push_back(std::move(action));
}

void Placing::run() {
  set_state(schedule_, schedule_.state());
  list_flats();
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
      if (!at(id_of(schedule_, action.writes.front())).is_updated_on_host)
        actions_.push_back(std::move(action));
    } else if (action.operation == &operations::kOptimizerStep) {
      step(std::move(action));
    } else if (sum_of(action)) {
      use_sum(std::move(action), a);
    } else {
      if (action.operation == &operations::kNormPartial) {
        const FlatId id = id_of(schedule_, action.reads.front());
        if (at(id).is_updated_on_host) keep_sum(id, schedule_.placement.optimizer);
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
