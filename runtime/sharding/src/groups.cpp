#include "tessera/sharding/groups.h"

#include <set>
#include <tuple>

#include "tessera/collectives/nccl_group.h"
#include "tessera/collectives/sim_group.h"
#include "tessera/core/error.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/operation.h"

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

/// Every pair of pipeline ranks between which messages go, for each lane and direction one.
std::vector<PipelinePair> pairs_of(std::span<const Schedule* const> schedules) {
  std::set<PipelinePair> pairs;
  for (const Schedule* const schedule : schedules) {
    for (const Action& action : schedule->actions) {
      if (!action.operation->is_message) continue;
      pairs.insert(PipelinePair::of(action.lane, schedule->pipeline.rank, action.peer));
    }
  }
  return {pairs.begin(), pairs.end()};
}

std::string pair_in_words(const Schedule& schedule, const PipelinePair& pair) {
  return concat("the messages from ", rank_in_words(schedule, pair.from), ", to ",
                rank_in_words(schedule, pair.to), ", on the ", to_string(pair.lane), " lane");
}

void subtract(Traffic& from, const Traffic& part) {
  for (std::size_t kind = 0; kind < from.calls.size(); ++kind) {
    from.calls[kind] -= part.calls[kind];
    from.sent_bytes[kind] -= part.sent_bytes[kind];
  }
  from.copied_bytes -= part.copied_bytes;
}

/// Pairs in lists without a rank in common, so that one split() makes all groups of a list.
std::vector<std::vector<PipelinePair>> apart(const std::vector<PipelinePair>& pairs) {
  std::vector<std::vector<PipelinePair>> lists;
  std::vector<std::set<int>> taken;
  for (const PipelinePair& pair : pairs) {
    std::size_t list = 0;
    while (list < lists.size() &&
           (taken[list].contains(pair.from) || taken[list].contains(pair.to))) {
      ++list;
    }
    if (list == lists.size()) {
      lists.emplace_back();
      taken.emplace_back();
    }
    lists[list].push_back(pair);
    taken[list].insert({pair.from, pair.to});
  }
  return lists;
}

}  // namespace

std::string rank_in_words(const Schedule& schedule, int pipeline_rank) {
  std::string stages;
  const std::vector<int> own =
      schedule.pipeline.stages_of_rank(pipeline_rank, schedule.pipeline_ranks());
  for (const int s : own) stages += concat(stages.empty() ? "" : ", ", s);
  return concat("pipeline rank ", pipeline_rank, own.size() == 1 ? ", stage " : ", stages ",
                stages);
}

/// A message is of the layer that has made it, or whose output's gradient it is.
int stage_of(const Schedule& schedule, const Action& action) {
  if (action.layer < 0) return -1;
  const int layer = schedule.is_here(action.layer) ? action.layer : action.layer + 1;
  return schedule.pipeline.stage_of(layer);
}

PipelinePair PipelinePair::of(Lane lane, int rank, int peer) {
  const bool sends = lane == Lane::kSend || lane == Lane::kSendBack;
  return {sends ? lane : opposite(lane), sends ? rank : peer, sends ? peer : rank};
}

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
  groups.pipeline_rank_ = mesh.index(Axis::kPipeline, world.rank());
  if (world.size() == 1) return groups;
  const ShardNesting nesting(mesh, schedule.placement);
  for (const auto& [lane, axes] : collectives_of(schedules)) {
    const int color = nesting.index(nesting.all_axes() - axes, groups.rank_);
    groups.groups_[static_cast<std::size_t>(lane)][axes.number()] =
        world.split(color, nesting.index(axes, groups.rank_));
  }
  groups.control_ = world.split(0, nesting.index(nesting.all_axes(), groups.rank_));
  if (mesh.size(Axis::kPipeline) == 1) return groups;
  groups.own_state_ =
      world.split(groups.pipeline_rank_, nesting.index(nesting.state_axes(), groups.rank_));
  const AxisSet others = nesting.all_axes() - AxisSet{Axis::kPipeline};
  const int places = mesh.size(others), place = nesting.index(others, groups.rank_);
  for (const std::vector<PipelinePair>& list : apart(pairs_of(schedules))) {
    int number = static_cast<int>(list.size()) + groups.pipeline_rank_;  // of nobody else
    const PipelinePair* own = nullptr;
    for (const PipelinePair& pair : list) {
      if (pair.from != groups.pipeline_rank_ && pair.to != groups.pipeline_rank_) continue;
      own = &pair;
      number = static_cast<int>(own - list.data());
    }
    auto group = world.split(number * places + place, groups.pipeline_rank_);
    if (own == nullptr) continue;
    group->set_label(pair_in_words(schedule, *own));
    groups.pairs_[*own] = std::move(group);
  }
  return groups;
}

RankGroups RankGroups::simulated(int rank, std::span<const Schedule* const> schedules,
                                 SimMeetings* meetings) {
  const auto make = [&](int own, int size, const std::string& name, int present) {
    return meetings == nullptr ? make_sim_group(own, size)
                               : make_sim_group(own, size, *meetings, name, present);
  };
  const Schedule& schedule = *schedules.front();
  RankGroups groups;
  groups.rank_ = rank;
  groups.pipeline_rank_ = schedule.mesh.index(Axis::kPipeline, rank);
  const ShardNesting nesting(schedule.mesh, schedule.placement);
  for (const auto& [lane, axes] : collectives_of(schedules)) {
    groups.groups_[static_cast<std::size_t>(lane)][axes.number()] =
        make_sim_group(nesting.index(axes, rank), schedule.mesh.size(axes));
  }
  if (schedule.mesh.world_size() > 1) {
    groups.control_ = make(nesting.index(nesting.all_axes(), rank), schedule.mesh.world_size(),
                           "all ranks", schedule.pipeline_ranks());
  }
  for (const PipelinePair& pair : pairs_of(schedules)) {
    const int own = groups.pipeline_rank_;
    if (pair.from != own && pair.to != own) continue;
    groups.pairs_[pair] = make(own > std::min(pair.from, pair.to) ? 1 : 0, 2,
                               concat("the ", to_string(pair.lane), " lane from pipeline rank ",
                                      pair.from, " to ", pair.to),
                               2);
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

ProcessGroup& RankGroups::pair(Lane lane, int peer) const {
  const auto found = pairs_.find(PipelinePair::of(lane, pipeline_rank_, peer));
  require(found != pairs_.end(), ErrorCode::kInternal, "no process group for the ", to_string(lane),
          " lane of pipeline ranks ", pipeline_rank_, " and ", peer);
  return *found->second;
}

void RankGroups::connect_pairs(const TensorView& element, Stream& stream) {
  if (std::exchange(connected_, true)) return;
  bool sent = false;
  for (const auto& [pair, group] : pairs_) {
    if (dynamic_cast<NcclGroup*>(group.get()) == nullptr) continue;
    const Traffic before = group->traffic();
    const bool sends = pair.from == pipeline_rank_;
    const int peer = sends == (pair.from < pair.to) ? 1 : 0;
    if (sends) {
      group->send(element, peer, stream);
    } else {
      group->recv(element, peer, stream);
    }
    connecting_ += group->traffic();
    subtract(connecting_, before);
    sent = true;
  }
  if (sent) stream.synchronize();
}

Traffic RankGroups::traffic() const {
  Traffic sum;
  for (const auto& lane : groups_) {
    for (const auto& group : lane) {
      if (group != nullptr) sum += group->traffic();
    }
  }
  for (const auto& [pair, group] : pairs_) sum += group->traffic();
  subtract(sum, connecting_);
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
  for (const auto& [pair, group] : pairs_) group->abort(reason);
  if (own_state_ != nullptr) own_state_->abort(reason);
  if (control_ != nullptr) control_->abort(reason);
}

}  // namespace tessera
