#include <algorithm>
#include <utility>
#include <vector>

#include "pass_tools.h"
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
    state.optimizer.push_back(b);
    state.has_master = state.has_master || buffer.role == Role::kMaster;
  }
  return states;
}

/// Master weights are what is updated; where there are none, the parameters.
Action optimizer_step(const FlatState& state, int unit, Lane lane, const Operand& results) {
  const auto of_unit = [unit](int buffer) { return Operand{.buffer = buffer, .unit = unit}; };
  Action step{.operation = &operations::kOptimizerStep,
              .lane = lane,
              .reads = {of_unit(state.gradient), results},
              .writes = {of_unit(state.parameter)}};
  if (!state.has_master) step.reads.push_back(of_unit(state.parameter));
  for (const int buffer : state.optimizer) {
    step.reads.push_back(of_unit(buffer));
    step.writes.push_back(of_unit(buffer));
  }
  return step;
}

}  // namespace

Schedule update(Schedule schedule) {
  if (schedule.purpose != Purpose::kTrain) return schedule;
  const Operand norm{.buffer =
                         add_buffer(schedule, {.name = std::string(to_string(BufferKind::kNorm)),
                                               .kind = BufferKind::kNorm,
                                               .format = DType::kInt64,
                                               .numel = kExactSumWords})};
  Operand added = norm;
  added.adds = true;
  PerFlat<int> casts = per_flat(schedule.units, -1);  // the last one
  const auto last_cast = [&](const Operand& sum) -> int& {
    const FlatId id = id_of(schedule, sum);
    return casts[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.flat)];
  };
  for (int a = 0; a < static_cast<int>(schedule.actions.size()); ++a) {
    const Action& action = schedule.actions[static_cast<std::size_t>(a)];
    if (action.operation != &operations::kCast) continue;
    last_cast(action.writes.front()) = a;
  }
  std::vector<Action> actions;
  Operand results;
  for (int a = 0; a < static_cast<int>(schedule.actions.size()); ++a) {
    Action& action = schedule.actions[static_cast<std::size_t>(a)];
    if (action.operation == &operations::kCountTokens) action.writes.push_back(norm);
    if (action.operation == &operations::kResults) {
      action.reads.push_back(norm);
      results = action.writes.front();
    }
    actions.push_back(std::move(action));
    if (actions.back().operation != &operations::kCast) continue;
    const Operand gradient{.buffer = actions.back().writes.front().buffer,
                           .unit = actions.back().writes.front().unit};
    if (last_cast(gradient) != a) continue;
    actions.push_back({.operation = &operations::kNormPartial,
                       .lane = Lane::kReduce,
                       .reads = {gradient},
                       .writes = {added}});
  }
  const Lane lane = schedule.overlap_optimizer ? Lane::kOptimizer : Lane::kCompute;
  const PerFlat<FlatState> states = states_of(schedule);
  for (int u = 0; u < static_cast<int>(states.size()); ++u) {
    for (const FlatState& state : states[static_cast<std::size_t>(u)]) {
      if (state.gradient >= 0) actions.push_back(optimizer_step(state, u, lane, results));
    }
  }
  schedule.actions = std::move(actions);
  return schedule;
}

}  // namespace tessera
