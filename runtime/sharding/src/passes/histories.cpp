#include "tessera/sharding/histories.h"

#include <algorithm>
#include <array>
#include <utility>

#include "passes/pass_tools.h"
#include "tessera/core/error.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/passes.h"

// [Note: delayed scaling]
//
// 1. A scale is made of largest magnitudes of earlier steps, so that a tensor is rounded as it is
//    written, and ranks have all scales before a step begins. Passes read the histories, and take
//    the magnitudes of this step to the maxima, all micro-steps together.
// 2. Behind the last pass the ranks' maxima are joined, once a step: so histories, and the bits
//    that they decide, depend neither on the strategy nor on the number of ranks. A roll adds them
//    to the histories, and leaves zeros for the next step.
// 3. Passes that compute activations again use the same scales, which no pass changes.
namespace tessera {

HistoryTable::HistoryTable(const Schedule& schedule)
    : first_(schedule.layers.size(), -1),
      axes_(ShardNesting(schedule.mesh, schedule.placement).all_axes() - AxisSet{Axis::kPipeline}) {
  if (schedule.fp8_history < 1 || schedule.purpose != Purpose::kTrain) return;
  for (int l = 0; l < static_cast<int>(schedule.layers.size()); ++l) {
    const int matrices = schedule.layers[static_cast<std::size_t>(l)].fp8_histories;
    if (matrices == 0 || !schedule.is_here(l)) continue;
    first_[static_cast<std::size_t>(l)] = tensors_;
    tensors_ += std::int64_t{matrices} * kFp8Tensors;
  }
  history_numel_ = tensors_ * schedule.fp8_history;
  const int ranks = schedule.mesh.size(axes_);
  maxima_numel_ = tensors_ * (ranks == 1 ? 1 : 1 + ranks);
}

std::string note_of_infinities(const std::vector<Fp8History>& histories) {
  constexpr std::array kTensors{"the matrix", "its layer's input", "its output's gradient"};
  static_assert(kTensors.size() == kFp8Tensors);
  constexpr std::uint32_t kInfinity = 0x7f800000;
  std::string first;
  int count = 0;
  for (const Fp8History& history : histories) {
    for (std::size_t t = 0; t < history.words.size(); ++t) {
      if (std::ranges::find(history.words[t], kInfinity) == history.words[t].end()) continue;
      if (count++ == 0) first = concat(history.name, " (", kTensors[t], ")");
    }
  }
  if (count == 0) return "";
  return concat(
      "delayed scaling: a number in ", first,
      count > 1 ? concat(" and in ", count - 1, count > 2 ? " other tensors" : " other") : "",
      " was infinite in one of the last steps; it became the largest code, so the "
      "gradient norm does not tell. Try a lower learning rate, or `fp8_recipe` current");
}

bool takes_maxima(const Action& action) {
  return action.operation->parts.forward || action.operation->parts.backward;
}

Schedule histories(Schedule schedule) {
  const HistoryTable table(schedule);
  if (table.empty()) return schedule;
  const Operand history{.buffer = add_buffer(schedule, {.name = "fp8.history",
                                                        .kind = BufferKind::kHistory,
                                                        .role = Role::kHistory,
                                                        .format = DType::kInt32,
                                                        .numel = table.history_numel()})};
  const Operand maxima{.buffer = add_buffer(schedule, {.name = "fp8.maxima",
                                                       .kind = BufferKind::kMaxima,
                                                       .role = Role::kMaxima,
                                                       .format = DType::kInt32,
                                                       .numel = table.maxima_numel()})};
  std::size_t end = 0;  // of the passes
  for (std::size_t a = 0; a < schedule.actions.size(); ++a) {
    Action& action = schedule.actions[a];
    if (!action.operation->is_pass) continue;
    end = a + 1;
    if (table.first_tensor(action.layer) < 0) continue;
    action.reads.push_back(history);
    if (!takes_maxima(action)) continue;
    action.writes.push_back(maxima);
    action.writes.back().adds = true;
  }
  std::vector<Action> added;
  if (!table.axes().empty()) {
    added.push_back({.operation = &operations::kAllReduceMax,
                     .lane = Lane::kReduce,
                     .reads = {maxima},
                     .writes = {maxima},
                     .axes = table.axes()});
  }
  added.push_back({.operation = &operations::kRollHistory,
                   .lane = Lane::kReduce,
                   .reads = {maxima, history},
                   .writes = {maxima, history}});
  schedule.actions.insert(schedule.actions.begin() + static_cast<std::ptrdiff_t>(end),
                          std::make_move_iterator(added.begin()),
                          std::make_move_iterator(added.end()));
  return schedule;
}

}  // namespace tessera
