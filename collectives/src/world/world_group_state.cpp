#include "world/world_group_state.h"

#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// [Note: message tags] An MPI tag has 31 bits. Messages of one pair of processes are told apart by
// the group, by the two ranks within their processes, and by send/recv or collective. Two groups
// may share an id only if no pair of ranks is in both; see WorldGroup::split.
constexpr std::uint32_t kLocalRankBits = 8;
constexpr std::uint32_t kGroupBits = 31 - 2 * kLocalRankBits - 1;

}  // namespace

WorldGroupState::WorldGroupState(std::shared_ptr<WorldCore> core, std::uint32_t id,
                                 std::vector<int> ranks, int rank, SharedBuffer shared)
    : core_(std::move(core)), id_(id), ranks_(std::move(ranks)), rank_(rank) {
  std::byte* const base = core_->at(shared.process, shared.offset);
  members_ = reinterpret_cast<SharedMember*>(base);
  channels_ = reinterpret_cast<SharedChannel*>(base + ranks_.size() * sizeof(SharedMember));
}

std::uint32_t WorldGroupState::tag(int source, int destination, bool pairwise) const {
  const auto local = [&](int rank) {
    return static_cast<std::uint32_t>(world_rank(rank) % core_->options().local_ranks);
  };
  require(core_->options().local_ranks <= (1 << kLocalRankBits) && id_ < (1U << kGroupBits),
          ErrorCode::kUnavailable, "more than ", 1 << kLocalRankBits, " ranks in a process or ",
          1U << kGroupBits, " groups cannot exchange messages between machines");
  std::uint32_t tag = id_;
  tag = tag << kLocalRankBits | local(source);
  tag = tag << kLocalRankBits | local(destination);
  return tag << 1U | (pairwise ? 1U : 0U);
}

}  // namespace tessera
