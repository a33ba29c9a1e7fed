#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "tessera/collectives/process_group.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

class SimMeetings;

/// Two pipeline ranks of which one sends to the other.
struct PipelinePair {
  Lane lane = Lane::kSend;  ///< the sender's
  int from = 0;
  int to = 0;
  auto operator<=>(const PipelinePair&) const = default;

  /// The pair of a message that `rank` sends to or receives from `peer` on this lane.
  static PipelinePair of(Lane lane, int rank, int peer);
};

/// "pipeline rank 1, stage 1"; of several "pipeline rank 1, stages 1, 5".
std::string rank_in_words(const Schedule& schedule, int pipeline_rank);
/// The stage of this pipeline rank that an action is of: of passes, and of messages of layers. -1
/// of others.
int stage_of(const Schedule& schedule, const Action& action);

/// The process groups that one rank needs for a schedule: one per lane and set of axes, so that
/// all-gathers and reductions never share a communicator, one for each pair of pipeline ranks and
/// direction of messages, and one for scalars. In each, a rank's number is its index over the axes
/// in cutting order (ShardNesting::index), and in those of two pipeline ranks the lower one is 0.
class RankGroups {
 public:
  /// Collective: every rank of `world` must call it with the same schedule.
  static RankGroups split_from(ProcessGroup& world, const Schedule& schedule);
  /// For several schedules: those of all pipeline ranks, and of each all that run over its state,
  /// in the same order on every rank.
  static RankGroups split_from(ProcessGroup& world, std::span<const Schedule* const> schedules);
  /// Groups of one simulated rank. `meetings`: where it meets the other pipeline ranks, of each of
  /// which one rank is simulated; null: it is simulated alone.
  static RankGroups simulated(int rank, std::span<const Schedule* const> schedules,
                              SimMeetings* meetings = nullptr);

  int rank() const { return rank_; }
  /// Throws Error{kInternal} if the schedule has no such collective.
  ProcessGroup& of(Lane lane, AxisSet axes) const;
  /// The two ranks of a message. Throws Error{kInternal} if no schedule has one between them.
  ProcessGroup& pair(Lane lane, int peer) const;
  /// All ranks, for scalars and the like; null if there is only one rank.
  ProcessGroup* control() const { return control_.get(); }
  /// The ranks that have parts of the same training state, those of a pipeline rank; null if it is
  /// only one.
  ProcessGroup* state() const {
    ProcessGroup* const group = own_state_ != nullptr ? own_state_.get() : control_.get();
    return group == nullptr || group->size() == 1 ? nullptr : group;
  }
  /// Sends one element to each pipeline rank that messages go to, or receives it, where a group
  /// connects its ranks at its first message (NCCL): in one order on all ranks, so that none waits
  /// for another that waits for it. Blocks. Such messages are no part of traffic(). `element`: on
  /// the stream's device, of one element, which is overwritten. Once; later calls do nothing.
  void connect_pairs(const TensorView& element, Stream& stream);
  /// Traffic of the schedule's collectives: the sum over the lanes' groups, and the all-reduces of
  /// the control group. Its all-gathers, which export parameters, are no part of a step.
  Traffic traffic() const;
  /// Takes every group down; see ProcessGroup::abort.
  void abort(std::string_view reason) const noexcept;

 private:
  int rank_ = 0;
  int pipeline_rank_ = 0;
  std::array<std::array<std::unique_ptr<ProcessGroup>, kAxisSets>, kLanes> groups_;
  std::map<PipelinePair, std::unique_ptr<ProcessGroup>> pairs_;
  std::unique_ptr<ProcessGroup> control_;
  std::unique_ptr<ProcessGroup> own_state_;  ///< of several pipeline ranks
  bool connected_ = false;
  Traffic connecting_;  ///< of connect_pairs()
};

}  // namespace tessera
