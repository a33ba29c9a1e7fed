#include "world/world_group_state.h"

#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// [Note: message tags] An MPI tag has 31 bits. Messages of one pair of processes are told apart by
// the group, by the two ranks within their processes, and by their use. Two groups may share an id
// only if no pair of ranks is in both; see WorldGroup::split.
constexpr std::uint32_t kLocalRankBits = 8;
constexpr std::uint32_t kUseBits = 2;
constexpr std::uint32_t kGroupBits = 31 - 2 * kLocalRankBits - kUseBits;

}  // namespace

WorldGroupState::WorldGroupState(std::shared_ptr<WorldCore> core, std::uint32_t id,
                                 std::vector<int> ranks, int rank, SharedBuffer shared)
    : core_(std::move(core)), id_(id), ranks_(std::move(ranks)), rank_(rank) {
  std::byte* const base = core_->at(shared.process, shared.offset);
  members_ = reinterpret_cast<SharedMember*>(base);
  channels_ = reinterpret_cast<SharedChannel*>(base + ranks_.size() * sizeof(SharedMember));
  check_tags();
}

/// Here and not where a tag is made: a rank that cannot have the group hears it from the call that
/// asks for it, and every rank of the group hears the same.
void WorldGroupState::check_tags() const {
  bool far = false;
  for (int peer = 0; peer < size(); ++peer) far = far || !near(peer);
  if (!far) return;  // it sends no messages
  const int local_ranks = core_->options().local_ranks;
  require(local_ranks <= 1 << kLocalRankBits, ErrorCode::kUnavailable, local_ranks,
          " ranks in a process are too many: between machines they can be ", 1 << kLocalRankBits);
  require(id_ < 1U << kGroupBits, ErrorCode::kUnavailable, "cannot make group ", id_,
          ": a run can have ", 1U << kGroupBits,
          " groups that span machines, and their numbers are not used again; split once and keep "
          "the groups, not in every step");
}

std::uint32_t WorldGroupState::tag(int source, int destination, MessageUse use) const {
  const auto local = [&](int rank) {
    return static_cast<std::uint32_t>(world_rank(rank) % core_->options().local_ranks);
  };
  std::uint32_t tag = id_;
  tag = tag << kLocalRankBits | local(source);
  tag = tag << kLocalRankBits | local(destination);
  return tag << kUseBits | static_cast<std::uint32_t>(use);
}

}  // namespace tessera
