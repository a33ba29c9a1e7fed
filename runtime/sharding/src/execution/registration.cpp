#include "execution/registration.h"

#include <set>
#include <utility>
#include <vector>

#include "tessera/collectives/nccl_group.h"
#include "tessera/core/error.h"

namespace tessera {
std::string register_buffers(const Schedule& schedule, const StepBuffers& buffers,
                             const RankGroups& groups) {
  int refused = 0;
  std::string reason;
  std::set<std::pair<NcclGroup*, std::byte*>> known;
  for (const Action& action : schedule.actions) {
    if (action.axes.empty()) continue;
    auto* const group = dynamic_cast<NcclGroup*>(&groups.of(action.lane, action.axes));
    if (group == nullptr) continue;
    std::vector<Operand> operands = action.reads;
    operands.insert(operands.end(), action.writes.begin(), action.writes.end());
    for (const Operand& operand : operands) {
      const TensorView buffer = buffers.whole(operand.buffer);
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
