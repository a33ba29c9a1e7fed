#include "stage_times.h"

#include <algorithm>
#include <compare>
#include <map>

#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

/// Something in which pipeline ranks meet: the n-th of a step of all ranks, or the n-th message of
/// a step from one of them to another.
struct MeetingKey {
  std::int64_t step = 0;
  int from = -1, to = -1;  ///< -1: all meet
  bool back = false;       ///< on the lanes of gradients
  int number = 0;
  auto operator<=>(const MeetingKey&) const = default;
};

/// Which meeting each action of a schedule is, but for the step; without one, of number -1.
std::vector<MeetingKey> meetings_of(const Schedule& schedule) {
  std::map<MeetingKey, int> counts;
  std::vector<MeetingKey> keys;
  for (const Action& action : schedule.actions) {
    MeetingKey key{.number = -1};
    if (action.operation->is_message) {
      const bool sends = !action.reads.empty();
      key.from = sends ? schedule.pipeline.rank : action.peer;
      key.to = sends ? action.peer : schedule.pipeline.rank;
      key.back = action.lane == Lane::kSendBack || action.lane == Lane::kReceiveBack;
    } else if (action.operation->meeting != Meeting::kWorld) {
      keys.push_back(key);
      continue;
    }
    key.number = 0;
    key.number = counts[key]++;
    keys.push_back(key);
  }
  return keys;
}

}  // namespace

std::vector<std::vector<ActionSpan>> without_waiting(
    std::vector<std::vector<ActionSpan>> spans, const std::vector<std::vector<Program>>& ranks) {
  if (spans.size() == 1) return spans;
  std::map<MeetingKey, double> begins;
  std::vector<std::vector<MeetingKey>> meetings;
  const auto meeting_of = [&](std::size_t rank, const ActionSpan& span) {
    MeetingKey key = meetings[rank][static_cast<std::size_t>(span.action)];
    key.step = span.step;
    return key;
  };
  for (std::size_t rank = 0; rank < spans.size(); ++rank) {
    meetings.push_back(meetings_of(*ranks[rank].front().schedule));
    for (const ActionSpan& span : spans[rank]) {
      const MeetingKey key = meeting_of(rank, span);
      if (key.number < 0) continue;
      const auto [known, is_new] = begins.try_emplace(key, span.begin);
      if (!is_new) known->second = std::max(known->second, span.begin);
    }
  }
  for (std::size_t rank = 0; rank < spans.size(); ++rank) {
    for (ActionSpan& span : spans[rank]) {
      const MeetingKey key = meeting_of(rank, span);
      if (key.number >= 0) span.begin = std::min(span.end, begins.at(key));
    }
  }
  return spans;
}

StageTime stage_time(const std::vector<ActionSpan>& spans, double steps, double step_seconds) {
  StageTime time;
  const LaneTime messages =
      time_of({Lane::kSend, Lane::kReceive, Lane::kSendBack, Lane::kReceiveBack}, spans);
  const double busy = time_of({Lane::kCompute, Lane::kOptimizer, Lane::kGather, Lane::kReduce,
                               Lane::kCopyOut, Lane::kCopyIn, Lane::kDiskIn, Lane::kDiskOut,
                               Lane::kSend, Lane::kReceive, Lane::kSendBack, Lane::kReceiveBack},
                              spans)
                          .busy;
  time.compute = time_of({Lane::kCompute}, spans).busy / steps;
  time.exposed = time_of({Lane::kGather, Lane::kReduce}, spans).exposed / steps;
  time.exposed_messages = messages.exposed / steps;
  time.bubble = std::max(0.0, step_seconds - busy / steps);
  return time;
}

}  // namespace tessera
