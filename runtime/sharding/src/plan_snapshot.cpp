#include <algorithm>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/passes.h"
#include "tessera/sharding/planner.h"

namespace tessera {
namespace {

/// The state tensors of a snapshot, those first that the step overwrites first.
std::vector<int> tensors_to_copy(const Schedule& step, bool rounded_at_random) {
  std::vector<int> tensors;
  const auto add = [&](int buffer) {
    if (std::ranges::find(tensors, buffer) == tensors.end()) tensors.push_back(buffer);
  };
  const auto is_copied = [&](int buffer) {
    const ScheduleBuffer& state = step.buffers[static_cast<std::size_t>(buffer)];
    const auto is_master = [&state](const ScheduleBuffer& other) {
      return other.role == Role::kMaster && other.unit == state.unit && other.flat == state.flat;
    };
    if (state.unit >= 0 && step.units[static_cast<std::size_t>(state.unit)].mirrors >= 0)
      return false;
    return state.kind == BufferKind::kState &&
           (rounded_at_random || state.role != Role::kParameter ||
            std::ranges::none_of(step.buffers, is_master));
  };
  for (const Action& action : step.actions) {
    if (action.operation != &operations::kOptimizerStep) continue;
    for (const Operand& operand : action.writes) {
      if (is_copied(operand.buffer)) add(operand.buffer);
    }
  }
  for (int b = 0; b < static_cast<int>(step.buffers.size()); ++b) {
    if (is_copied(b)) add(b);
  }
  return tensors;
}

}  // namespace

Schedule with_snapshot(const Schedule& step, bool rounded_at_random) {
  require(step.purpose == Purpose::kTrain, ErrorCode::kInvalidArgument,
          "a snapshot is taken beside a step that trains");
  const AxisSet all = ShardNesting(step.mesh, step.placement).state_axes();
  Schedule result = step;
  std::vector<Action> copies;
  for (const int tensor : tensors_to_copy(step, rounded_at_random)) {
    ScheduleBuffer copy = step.buffers[static_cast<std::size_t>(tensor)];
    copy.name += "@snapshot";
    copy.kind = BufferKind::kSnapshot;
    copy.sharded = copy.is_factored() ? AxisSet() : all;
    copy.numel = step.own_numel(copy) / step.mesh.size(copy.sharded);
    copy.persistent = false;
    copy.tier = Tier::kHost;
    copies.push_back(
        {.operation = &operations::kCopy,
         .lane = Lane::kCopyOut,
         .reads = {{tensor, copy.unit, copy.sharded}},
         .writes = {{static_cast<int>(result.buffers.size()), copy.unit, copy.sharded}}});
    result.buffers.push_back(std::move(copy));
  }
  result.actions.insert(result.actions.begin(), copies.begin(), copies.end());
  return synchronise(std::move(result));
}

}  // namespace tessera
