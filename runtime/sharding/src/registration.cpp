#include "registration.h"

#include <set>
#include <utility>
#include <vector>

#include "tessera/collectives/nccl_group.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// The whole buffers that a collective touches parts of.
std::vector<TensorView> buffers_of(const Action& action, const RankState& state) {
  switch (action.kind) {
    case ActionKind::kUnshard:
      return {state.parameter_slot(action.slot), state.parameter_buffer(action.unit, true),
              state.parameter_buffer(action.unit, false)};
    case ActionKind::kReduceScatter:
      if (action.slot >= 0) {
        return {state.gradient_slot(action.slot), state.gradient_buffer(action.unit)};
      }
      return {state.gradient_buffer(action.unit)};
    case ActionKind::kAllReduce:
    case ActionKind::kGatherGradient:
      return {state.gradient_buffer(action.unit)};
    case ActionKind::kGatherParameter:
      return {state.parameter_buffer(action.unit, true)};
    default:
      return {};
  }
}

}  // namespace

std::string register_buffers(const Schedule& schedule, const RankState& state,
                             const RankGroups& groups) {
  int refused = 0;
  std::string reason;
  std::set<std::pair<NcclGroup*, std::byte*>> known;
  for (const Action& action : schedule.actions) {
    if (action.axes.empty()) continue;
    auto* const group = dynamic_cast<NcclGroup*>(&groups.of(action.lane(), action.axes));
    if (group == nullptr) continue;
    for (const TensorView& buffer : buffers_of(action, state)) {
      if (!buffer || buffer.numel() == 0 || !known.emplace(group, buffer.data).second) continue;
      const std::string why =
          group->register_buffer(buffer.data, static_cast<std::size_t>(buffer.bytes()));
      if (why.empty()) continue;
      ++refused;
      if (reason.empty()) reason = why;
    }
  }
  if (refused == 0) return "";
  return concat(
      "NCCL has not registered ", refused, " of ", known.size(),
      " buffers, and copies what they hold through its own where it could do without: ", reason);
}

}  // namespace tessera
