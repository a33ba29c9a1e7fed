#pragma once

#include <array>
#include <memory>
#include <span>

#include "tessera/collectives/process_group.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// The process groups that one rank needs for a schedule: one per lane and set of axes, so that
/// all-gathers and reductions never share a communicator, and one for scalars. In each, a rank's
/// number is its index over the axes in cutting order (ShardNesting::index).
class RankGroups {
 public:
  /// Collective: every rank of `world` must call it with the same schedule.
  static RankGroups split_from(ProcessGroup& world, const Schedule& schedule);
  /// For several schedules that run over one state.
  static RankGroups split_from(ProcessGroup& world, std::span<const Schedule* const> schedules);
  /// Groups of one simulated rank.
  static RankGroups simulated(int rank, std::span<const Schedule* const> schedules);

  int rank() const { return rank_; }
  /// Throws Error{kInternal} if the schedule has no such collective.
  ProcessGroup& of(Lane lane, AxisSet axes) const;
  /// All ranks, for scalars, parameter export and the like; null if there is only one rank.
  ProcessGroup* control() const { return control_.get(); }
  /// Traffic of the schedule's collectives: the sum over the lanes' groups, and the all-reduces of
  /// the control group. Its all-gathers, which export parameters, are no part of a step.
  Traffic traffic() const;
  /// Takes every group down; see ProcessGroup::abort.
  void abort(std::string_view reason) const noexcept;

 private:
  int rank_ = 0;
  std::array<std::array<std::unique_ptr<ProcessGroup>, kAxisSets>, kLanes> groups_;
  std::unique_ptr<ProcessGroup> control_;
};

}  // namespace tessera
