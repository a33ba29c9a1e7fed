#include <algorithm>
#include <utility>
#include <vector>

#include "passes/pass_tools.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/sharding/passes.h"

namespace tessera {
namespace {

/// Buffers of a flat parameter that its optimizer step reads and writes.
struct FlatState {
  int gradient = -1;
  int parameter = -1;
  std::vector<int> optimizer{};  ///< master weights, and what the optimizer keeps
  bool has_master = false;
};

PerFlat<FlatState> states_of(const Schedule& schedule) {
  PerFlat<FlatState> states = per_flat(schedule.units, FlatState());
  for (int b = 0; b < static_cast<int>(schedule.buffers.size()); ++b) {
    const ScheduleBuffer& buffer = schedule.buffers[static_cast<std::size_t>(b)];
    if (buffer.unit < 0) continue;
    FlatState& state =
        states[static_cast<std::size_t>(buffer.unit)][static_cast<std::size_t>(buffer.flat)];
    if (buffer.role == Role::kGradient) state.gradient = b;
    if (buffer.role == Role::kParameter) state.parameter = b;
    if (buffer.role != Role::kMaster && buffer.role != Role::kOptimizer) continue;
    if (buffer.is_factored()) continue;  // the pass `factored` has these
    state.optimizer.push_back(b);
    state.has_master = state.has_master || buffer.role == Role::kMaster;
  }
  return states;
}

/// Master weights are what is updated; where there are none, the parameters.
Action optimizer_step(const FlatState& state, int unit, Lane lane, const Operand& scalars) {
  const auto of_unit = [unit](int buffer) { return Operand{.buffer = buffer, .unit = unit}; };
  Action step{.operation = &operations::kOptimizerStep,
              .lane = lane,
              .reads = {of_unit(state.gradient), scalars},
              .writes = {of_unit(state.parameter)}};
  if (!state.has_master) step.reads.push_back(of_unit(state.parameter));
  for (const int buffer : state.optimizer) {
    step.reads.push_back(of_unit(buffer));
    step.writes.push_back(of_unit(buffer));
  }
  return step;
}

/// Adds the gradient norm and the optimizer steps. The gradient of a mirror is added to that of the
/// unit that it is of, once, and the unit's updated parameters come back: within one pipeline rank
/// without messages.
class Update {
 public:
  explicit Update(Schedule& schedule)
      : schedule_(schedule), states_(states_of(schedule)), casts_(last_casts(schedule)) {}

  void run();

 private:
  static PerFlat<int> last_casts(const Schedule& schedule);
  bool is_complete(int action) const;
  void finish(const FlatId& id, const Operand& norm);
  void add_mirror(const FlatId& mirror, const FlatId& id);
  void send_gradients();
  void step(const FlatId& id, const Operand& scalars);
  void receive_parameters();
  int mirror_rank(const ScheduleUnit& unit) const {
    return schedule_.units[static_cast<std::size_t>(unit.mirrors)].rank;
  }
  const ScheduleUnit& unit(const FlatId& id) const {
    return schedule_.units[static_cast<std::size_t>(id.unit)];
  }
  const FlatState& state(const FlatId& id) const {
    return states_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)];
  }
  /// The flat parameters of mirrors that are copies of this one.
  std::vector<FlatId> mirrors_of(const FlatId& id) const;
  template <typename Visit>
  void for_each_flat(const Visit& visit) const {
    for (int u = 0; u < static_cast<int>(states_.size()); ++u) {
      const auto flats = static_cast<int>(states_[static_cast<std::size_t>(u)].size());
      for (int f = 0; f < flats; ++f) visit(FlatId{u, f});
    }
  }
  static Operand operand(int buffer, const FlatId& id) {
    return {.buffer = buffer, .unit = id.unit};
  }

  Schedule& schedule_;
  std::vector<Action> actions_;
  PerFlat<FlatState> states_;
  const PerFlat<int> casts_;  ///< the last one of each
};

PerFlat<int> Update::last_casts(const Schedule& schedule) {
  PerFlat<int> casts = per_flat(schedule.units, -1);
  for (int a = 0; a < static_cast<int>(schedule.actions.size()); ++a) {
    const Action& action = schedule.actions[static_cast<std::size_t>(a)];
    if (action.operation != &operations::kCast) continue;
    const FlatId id = id_of(schedule, action.writes.front());
    casts[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)] = a;
  }
  return casts;
}

/// Whether a gradient has all its contributions with this action.
bool Update::is_complete(int action) const {
  const Action& cast = schedule_.actions[static_cast<std::size_t>(action)];
  if (cast.operation != &operations::kCast) return false;
  const FlatId id = id_of(schedule_, cast.writes.front());
  return casts_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)] == action;
}

std::vector<FlatId> Update::mirrors_of(const FlatId& id) const {
  std::vector<FlatId> mirrors;
  for_each_flat([&](const FlatId& other) {
    if (unit(other).mirrors != id.unit) return;
    if (schedule_.flat(other).name == schedule_.flat(id).name) mirrors.push_back(other);
  });
  return mirrors;
}

void Update::add_mirror(const FlatId& mirror, const FlatId& id) {
  Operand from = operand(state(mirror).gradient, mirror);
  if (!schedule_.is_here(unit(mirror))) {
    from.buffer = add_buffer(schedule_, {.name = unit(mirror).name + ".received",
                                         .kind = BufferKind::kReceiveSlot,
                                         .role = Role::kGradient,
                                         .numel = schedule_.flat(mirror).numel});
    schedule_.set_flats(from, {mirror.flat});
    actions_.push_back({.operation = &operations::kReceive,
                        .lane = Lane::kReceiveBack,
                        .writes = {from},
                        .peer = unit(mirror).rank});
  }
  Operand sum = operand(state(id).gradient, id);
  sum.adds = true;
  actions_.push_back({.operation = &operations::kAddTied,
                      .lane = Lane::kReduce,
                      .reads = {from},
                      .writes = {sum}});
}

/// A gradient has all contributions: what else there is to add, and the norm.
void Update::finish(const FlatId& id, const Operand& norm) {
  if (unit(id).mirrors >= 0) return;
  for (const FlatId& mirror : mirrors_of(id)) add_mirror(mirror, id);
  actions_.push_back({.operation = &operations::kNormPartial,
                      .lane = Lane::kReduce,
                      .reads = {operand(state(id).gradient, id)},
                      .writes = {norm}});
}

/// Mirrors send theirs to the ranks that keep the units, when no pass is left.
void Update::send_gradients() {
  for_each_flat([&](const FlatId& id) {
    if (state(id).gradient < 0 || unit(id).mirrors < 0) return;
    const int home = mirror_rank(unit(id));
    if (home == schedule_.pipeline.rank) return;
    actions_.push_back({.operation = &operations::kSend,
                        .lane = Lane::kSendBack,
                        .reads = {operand(state(id).gradient, id)},
                        .peer = home});
  });
}

void Update::step(const FlatId& id, const Operand& scalars) {
  if (state(id).gradient < 0 || unit(id).mirrors >= 0) return;
  const Lane lane = schedule_.overlap_optimizer ? Lane::kOptimizer : Lane::kCompute;
  actions_.push_back(optimizer_step(state(id), id.unit, lane, scalars));
  for (const FlatId& mirror : mirrors_of(id)) {
    if (schedule_.is_here(unit(mirror))) continue;
    actions_.push_back({.operation = &operations::kSend,
                        .lane = Lane::kSend,
                        .reads = {operand(state(id).parameter, id)},
                        .peer = unit(mirror).rank});
  }
}

void Update::receive_parameters() {
  for_each_flat([&](const FlatId& id) {
    if (state(id).gradient < 0 || state(id).parameter < 0 || unit(id).mirrors < 0) return;
    actions_.push_back({.operation = &operations::kReceive,
                        .lane = Lane::kReceive,
                        .writes = {operand(state(id).parameter, id)},
                        .peer = mirror_rank(unit(id))});
  });
}

void Update::run() {
  const Operand norm{.buffer =
                         add_buffer(schedule_, {.name = std::string(to_string(BufferKind::kNorm)),
                                                .kind = BufferKind::kNorm,
                                                .format = DType::kInt64,
                                                .numel = kExactSumWords})};
  Operand added = norm;
  added.adds = true;
  Operand scalars{.buffer = schedule_.find(BufferKind::kTokens)};
  const auto count = static_cast<int>(schedule_.actions.size());
  for (int a = 0; a < count; ++a) {
    Action& action = schedule_.actions[static_cast<std::size_t>(a)];
    if (action.operation == &operations::kCountTokens) action.writes.push_back(norm);
    if (action.operation == &operations::kResults) {
      send_gradients();
      action.reads.push_back(norm);
      if (schedule_.updates_wait_for_norm) scalars = action.writes.front();
    }
    actions_.push_back(action);
    if (is_complete(a)) finish(id_of(schedule_, action.writes.front()), added);
  }
  for_each_flat([&](const FlatId& id) { step(id, scalars); });
  receive_parameters();
  schedule_.actions = std::move(actions_);
}

}  // namespace

Schedule update(Schedule schedule) {
  if (schedule.purpose == Purpose::kTrain) Update(schedule).run();
  return schedule;
}

}  // namespace tessera
