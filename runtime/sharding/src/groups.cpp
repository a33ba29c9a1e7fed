#include "tessera/sharding/groups.h"

#include <set>

#include "tessera/collectives/sim_group.h"
#include "tessera/core/error.h"
#include "tessera/sharding/layout.h"

namespace tessera {
namespace {

/// Every (lane, axes) that some collective of the schedules uses, the same on all ranks.
std::vector<std::pair<Lane, AxisSet>> collectives_of(std::span<const Schedule* const> schedules) {
  std::set<std::pair<Lane, std::size_t>> seen;
  std::vector<std::pair<Lane, AxisSet>> out;
  for (const Schedule* const schedule : schedules) {
    for (const Action& action : schedule->actions) {
      if (action.axes.empty()) continue;
      if (seen.insert({action.lane, action.axes.number()}).second) {
        out.emplace_back(action.lane, action.axes);
      }
    }
  }
  return out;
}

}  // namespace

RankGroups RankGroups::split_from(ProcessGroup& world, const Schedule& schedule) {
  const Schedule* const one = &schedule;
  return split_from(world, std::span(&one, 1));
}

RankGroups RankGroups::split_from(ProcessGroup& world, std::span<const Schedule* const> schedules) {
  const Schedule& schedule = *schedules.front();
  const Mesh& mesh = schedule.mesh;
  require(world.size() == mesh.world_size(), ErrorCode::kInvalidArgument, "the schedule is for ",
          mesh.world_size(), " ranks but the process group has ", world.size());
  RankGroups groups;
  groups.rank_ = world.rank();
  if (world.size() == 1) return groups;
  const ShardNesting nesting(mesh, schedule.placement);
  for (const auto& [lane, axes] : collectives_of(schedules)) {
    const int color = nesting.index(nesting.all_axes() - axes, groups.rank_);
    groups.groups_[static_cast<std::size_t>(lane)][axes.number()] =
        world.split(color, nesting.index(axes, groups.rank_));
  }
  groups.control_ = world.split(0, nesting.index(nesting.all_axes(), groups.rank_));
  return groups;
}

RankGroups RankGroups::simulated(int rank, std::span<const Schedule* const> schedules) {
  const Schedule& schedule = *schedules.front();
  RankGroups groups;
  groups.rank_ = rank;
  const ShardNesting nesting(schedule.mesh, schedule.placement);
  for (const auto& [lane, axes] : collectives_of(schedules)) {
    groups.groups_[static_cast<std::size_t>(lane)][axes.number()] =
        make_sim_group(nesting.index(axes, rank), schedule.mesh.size(axes));
  }
  if (schedule.mesh.world_size() > 1) {
    groups.control_ =
        make_sim_group(nesting.index(nesting.all_axes(), rank), schedule.mesh.world_size());
  }
  return groups;
}

ProcessGroup& RankGroups::of(Lane lane, AxisSet axes) const {
  const auto& group = groups_[static_cast<std::size_t>(lane)][axes.number()];
  if (group == nullptr)
    fail(ErrorCode::kInternal, "no process group for the ", to_string(lane), " lane over ",
         to_string(axes));
  return *group;
}

Traffic RankGroups::traffic() const {
  Traffic sum;
  for (const auto& lane : groups_) {
    for (const auto& group : lane) {
      if (group != nullptr) sum += group->traffic();
    }
  }
  if (control_ != nullptr) {
    constexpr auto kScalars = CollectiveKind::kAllReduce;
    const Traffic control = control_->traffic();
    sum.calls_of(kScalars) += control.calls_of(kScalars);
    sum.sent_of(kScalars) += control.sent_of(kScalars);
  }
  return sum;
}

void RankGroups::abort(std::string_view reason) const noexcept {
  for (const auto& lane : groups_) {
    for (const auto& group : lane) {
      if (group != nullptr) group->abort(reason);
    }
  }
  if (control_ != nullptr) control_->abort(reason);
}

}  // namespace tessera
