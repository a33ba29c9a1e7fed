#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collective_call.h"
#include "world/shared_counter.h"
#include "world/world_core.h"

namespace tessera {

/// A buffer that a rank offers to the other ranks of its machine.
struct SharedBuffer {
  std::int32_t process;
  std::uint64_t offset;  ///< in the arena of `process`
};

/// One rank's part of a group's state, in memory that its machine's processes share; zero at first.
/// A rank writes its own only. See progress_at().
struct SharedMember {
  SharedCounter progress;
  SharedCounter finished;  ///< operations that this rank has left
  SharedBuffer buffer;     ///< these two: valid from kPublished until every rank is kDone
  CallSummary call;
};

/// The uses of messages from one rank to another. Each has an order of its own.
enum class MessageUse : std::uint32_t {
  kCollective,
  kSend,    ///< the summary and the data of a send
  kAnswer,  ///< the summary of a recv, which goes to the sender
};

/// From one rank to another. Both ends count their own calls; of a far pair, each machine has the
/// state of its end, which takes one call after the other.
struct SharedChannel {
  SharedCounter posted;  ///< sends whose buffer may be read
  SharedCounter taken;   ///< of these, how many have been read
  SharedBuffer buffer;
  CallSummary call;
};

/// A group as one of its ranks sees it.
class WorldGroupState {
 public:
  /// `ranks`: of the world, by rank in this group. `shared`: the group's part of this machine's
  /// memory, as `shared_bytes(ranks.size())`; the same for all of its ranks here. Throws
  /// Error{kUnavailable} if the group spans machines and `id` has no place in a tag.
  WorldGroupState(std::shared_ptr<WorldCore> core, std::uint32_t id, std::vector<int> ranks,
                  int rank, SharedBuffer shared);

  static std::size_t shared_bytes(std::size_t size) {
    return size * sizeof(SharedMember) + size * size * sizeof(SharedChannel);
  }

  WorldCore& core() const { return *core_; }
  const std::shared_ptr<WorldCore>& shared_core() const { return core_; }
  std::uint32_t id() const { return id_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int world_rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  /// True if the peer's memory can be read here.
  bool near(int peer) const { return core_->share_memory(world_rank(rank_), world_rank(peer)); }
  /// Near peers alone have a member.
  SharedMember& member(int rank) const { return members_[rank]; }
  SharedChannel& channel(int source, int destination) const {
    return channels_[source * size() + destination];
  }

  /// See ProcessGroup::set_label; before the first operation.
  void set_label(const std::string& label) { label_ = label; }
  const std::string& label() const { return label_; }

  /// The tag of messages from one rank of this group to another, of far peers.
  std::uint32_t tag(int source, int destination, MessageUse use) const;

 private:
  void check_tags() const;

  const std::shared_ptr<WorldCore> core_;
  const std::uint32_t id_;
  const std::vector<int> ranks_;
  const int rank_;
  SharedMember* members_;
  SharedChannel* channels_;
  std::string label_;
};

}  // namespace tessera
