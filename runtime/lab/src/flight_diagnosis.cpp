#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/lab/flight_dump.h"

namespace tessera {
namespace {

/// Seconds that a collective may take without being told of, where all have come to it.
constexpr double kLong = 1.0;

// [Note: who meets] Ranks of different pipeline ranks run different programs, so an action's index
// means nothing to a peer. On one communicator all members issue the same operations in one order:
// the k-th action of a rank's program that is on it meets the k-th of each other member, whichever
// layer and micro-step it is of. validate() of a step plan shows that these are the same.

/// An operation of a communicator, as all of its members know it.
struct MeetingPlace {
  int program = 0;  ///< as a rank counts its own
  std::int64_t step = 0;
  std::string group;
  int place = 0;  ///< among the actions of the program that are on it
  int first = 0;  ///< the first member: other ranks have communicators of the same name
  auto operator<=>(const MeetingPlace&) const = default;
};

/// One rank at the moment that its dump tells of.
class RankHistory {
 public:
  RankHistory(const FlightDump& dump, const DumpedRank& rank) : dump_(dump), rank_(rank) {}

  bool sees_ends() const { return dump_.sees_ends; }
  double time() const { return dump_.at; }
  int number() const { return rank_.rank; }
  std::optional<ActionRecord> host() const { return record_at(rank_.host, dump_.at); }
  /// The host, before the step in question, has come to this phase.
  bool has_reached(HostPhase phase, std::int64_t step) const;
  Obstacle obstacle_of_host() const;
  /// An action that runs.
  Obstacle in(const ActionRecord& record) const {
    return {.at = {record.program, record.step, record.action},
            .since = record.begin,
            .seconds = dump_.at - record.begin};
  }
  const std::vector<DumpedLane>& lanes() const { return rank_.lanes; }
  const DumpedAction& action(const ActionAt& at) const {
    return dump_.programs[static_cast<std::size_t>(at.program)]
        .actions[static_cast<std::size_t>(at.action)];
  }
  int pipeline_rank() const {
    return rank_.rank / std::max(1, dump_.world_size / dump_.pipeline_ranks());
  }
  bool has_pipeline() const { return dump_.pipeline_ranks() > 1; }
  MeetingPlace meeting_of(const ActionAt& at) const;
  /// The rank's own action there; none: its programs have none.
  std::optional<ActionAt> action_in(const MeetingPlace& meeting) const;
  const std::vector<int>& group(const ActionAt& at) const {
    static const std::vector<int> none;
    const auto found = rank_.groups.find(action(at).group);
    return found == rank_.groups.end() ? none : found->second;
  }

  std::optional<ActionRecord> last(const DumpedLane& lane) const {
    return record_at(lane.records, dump_.at);
  }
  bool has_begun(const ActionAt& at) const { return find(at).has_value() || is_forgotten(at); }
  bool has_ended(const ActionAt& at) const {
    const auto record = find(at);
    return record ? record->end.has_value() : is_forgotten(at);
  }
  /// The obstacle that keeps the rank from `at`, which it has not begun.
  Obstacle obstacle_before(const ActionAt& at) const;

 private:
  const DumpedLane* lane_of(const ActionAt& at) const;
  std::optional<ActionRecord> find(const ActionAt& at) const;
  bool is_forgotten(const ActionAt& at) const;
  bool is_issued(const ActionAt& at) const;
  ActionAt next_of_lane(const ActionAt& at) const;
  std::optional<ActionAt> first_unmet_wait(const ActionAt& at) const;

  const FlightDump& dump_;
  const DumpedRank& rank_;
};

MeetingPlace RankHistory::meeting_of(const ActionAt& at) const {
  const auto& actions = dump_.programs[static_cast<std::size_t>(at.program)].actions;
  const std::string& name = action(at).group;
  const auto before = std::count_if(actions.begin(), actions.begin() + at.action,
                                    [&](const DumpedAction& a) { return a.group == name; });
  const int programs = static_cast<int>(dump_.programs.size()) / dump_.pipeline_ranks();
  return {at.program % programs, at.step, name, static_cast<int>(before), group(at).front()};
}

std::optional<ActionAt> RankHistory::action_in(const MeetingPlace& meeting) const {
  const int programs = static_cast<int>(dump_.programs.size()) / dump_.pipeline_ranks();
  ActionAt at{pipeline_rank() * programs + meeting.program, meeting.step, 0};
  const auto& actions = dump_.programs[static_cast<std::size_t>(at.program)].actions;
  int place = -1;
  for (; at.action < static_cast<int>(actions.size()); ++at.action) {
    place += action(at).group == meeting.group ? 1 : 0;
    if (place == meeting.place) return at;
  }
  return std::nullopt;
}

ActionAt place_of(const ActionRecord& record) {
  return {record.program, record.step, record.action};
}

/// The lane, or the one that works for it: the first, where they share a stream.
const DumpedLane* RankHistory::lane_of(const ActionAt& at) const {
  const auto found = std::ranges::find(rank_.lanes, action(at).lane, &DumpedLane::name);
  if (found != rank_.lanes.end()) return &*found;
  return rank_.lanes.empty() ? nullptr : &rank_.lanes.front();
}

std::optional<ActionRecord> RankHistory::find(const ActionAt& at) const {
  const DumpedLane* const lane = lane_of(at);
  if (lane == nullptr) return std::nullopt;
  for (auto record = lane->records.rbegin(); record != lane->records.rend(); ++record) {
    if (record->begin > dump_.at || place_of(*record) != at) continue;
    ActionRecord found = *record;
    if (found.end && *found.end > dump_.at) found.end.reset();
    return found;
  }
  return std::nullopt;
}

/// Before what the ring still has.
bool RankHistory::is_forgotten(const ActionAt& at) const {
  const DumpedLane* const lane = lane_of(at);
  if (lane == nullptr || lane->records.empty()) return false;
  const ActionRecord& oldest = lane->records.front();
  return oldest.program == at.program &&
         std::pair(at.step, at.action) < std::pair(oldest.step, oldest.action) &&
         lane->records.size() >= ActionRing::kRecords;
}

bool RankHistory::is_issued(const ActionAt& at) const {
  return std::ranges::any_of(rank_.host, [&](const ActionRecord& record) {
    return record.begin <= dump_.at && record.program == at.program && record.step == at.step &&
           record.action == static_cast<int>(HostPhase::kIssues) && record.end &&
           *record.end <= dump_.at;
  });
}

/// The first action of the lane, up to `at`, that has not begun.
ActionAt RankHistory::next_of_lane(const ActionAt& at) const {
  const std::string& lane = action(at).lane;
  ActionAt next{at.program, at.step, 0};
  for (; next.action < at.action; ++next.action) {
    if (action(next).lane == lane && !has_begun(next)) return next;
  }
  return at;
}

std::optional<ActionAt> RankHistory::first_unmet_wait(const ActionAt& at) const {
  for (const int wait : action(at).waits) {
    const ActionAt earlier{at.program, at.step, wait};
    if (!has_ended(earlier)) return earlier;
  }
  if (at.step == 1) return std::nullopt;
  for (const int wait : action(at).previous_waits) {
    const ActionAt earlier{at.program, at.step - 1, wait};
    // A step of another run, before a checkpoint, is in no record.
    if (has_begun(earlier) && !has_ended(earlier)) return earlier;
  }
  return std::nullopt;
}

bool RankHistory::has_reached(HostPhase phase, std::int64_t step) const {
  return std::ranges::any_of(rank_.host, [&](const ActionRecord& record) {
    return record.begin <= dump_.at && record.action == static_cast<int>(phase) &&
           record.step == step;
  });
}

/// The host's own work, or, if it waits for results, an action that runs.
Obstacle RankHistory::obstacle_of_host() const {
  const auto now = host();
  if (now && now->action == static_cast<int>(HostPhase::kWaits)) {
    for (const DumpedLane& lane : rank_.lanes) {
      const auto working = last(lane);
      if (!working || working->end) continue;
      return in(*working);
    }
  }
  return {.kind = Obstacle::Kind::kHost,
          .at = {0, now ? now->step : 0, 0},
          .phase = now ? static_cast<HostPhase>(now->action) : HostPhase::kOutside,
          .since = now ? now->begin : dump_.at,
          .seconds = now ? dump_.at - now->begin : 0.0};
}

Obstacle RankHistory::obstacle_before(const ActionAt& at) const {
  const auto host = this->host();
  const auto by_host = [&] {
    return Obstacle{.kind = Obstacle::Kind::kHost,
                    .at = at,
                    .phase = host ? static_cast<HostPhase>(host->action) : HostPhase::kOutside,
                    .since = host ? host->begin : dump_.at,
                    .seconds = host ? dump_.at - host->begin : 0.0};
  };
  if (!sees_ends()) return by_host();
  if (const DumpedLane* const lane = lane_of(at)) {
    const auto working = last(*lane);
    if (working && !working->end) {
      return in(*working);
    }
  }
  const ActionAt next = next_of_lane(at);
  const bool issues = host && host->action == static_cast<int>(HostPhase::kIssues);
  if (!is_issued(at) && !issues) return by_host();
  if (const auto wait = first_unmet_wait(next)) {
    if (!has_begun(*wait)) return obstacle_before(*wait);  // earlier in the schedule: this ends
    return in(*find(*wait));
  }
  return issues ? by_host() : Obstacle{.kind = Obstacle::Kind::kReady, .at = next};
}

using Ranks = std::map<int, RankHistory>;

/// The collectives and messages that ranks are in. On a GPU: the last that each lane was given.
std::map<MeetingPlace, CollectiveWait> collectives_in_progress(const Ranks& ranks) {
  std::map<MeetingPlace, CollectiveWait> waits;
  for (const auto& [rank, history] : ranks) {
    for (const DumpedLane& lane : history.lanes()) {
      const auto record = history.last(lane);
      if (!record || record->end) continue;
      const ActionAt at = place_of(*record);
      if (history.group(at).size() < 2) continue;
      CollectiveWait& wait = waits[history.meeting_of(at)];
      if (wait.waiting.empty()) wait.at = at;
      wait.since = wait.waiting.empty() ? record->begin : std::min(wait.since, record->begin);
      wait.seconds = std::max(wait.seconds, history.time() - record->begin);
      wait.waiting.push_back(rank);
    }
  }
  return waits;
}

std::vector<Absence> absent_from(const MeetingPlace& meeting, const CollectiveWait& wait,
                                 const Ranks& ranks) {
  std::vector<Absence> absent;
  for (const int peer : ranks.at(wait.waiting.front()).group(wait.at)) {
    const auto found = ranks.find(peer);
    if (found == ranks.end()) {
      absent.push_back({.rank = peer});
      continue;
    }
    const auto own = found->second.action_in(meeting);
    if (own && !found->second.has_begun(*own)) {
      absent.push_back({.rank = peer, .obstacle = found->second.obstacle_before(*own)});
    }
  }
  return absent;
}

/// Members of a collective that all had begun which are at work on what another has ended.
std::vector<Absence> behind_in(const CollectiveWait& wait, const Ranks& ranks) {
  std::vector<Absence> behind;
  for (const int rank : wait.waiting) {
    const RankHistory& history = ranks.at(rank);
    for (const DumpedLane& lane : history.lanes()) {
      const auto record = history.last(lane);
      if (!record || record->end || !history.group(place_of(*record)).empty()) continue;
      const bool ended_elsewhere = std::ranges::any_of(
          wait.waiting, [&](int peer) { return ranks.at(peer).has_ended(place_of(*record)); });
      if (ended_elsewhere) behind.push_back({.rank = rank, .obstacle = history.in(*record)});
    }
  }
  return behind;
}

/// Between steps processes wait for each other; the first rank of each stands for it.
std::optional<CollectiveWait> wait_of_hosts(std::span<const FlightDump> dumps,
                                            const std::vector<int>& without_dump) {
  CollectiveWait wait;
  wait.of_hosts = true;
  std::vector<RankHistory> others;
  for (const FlightDump& dump : dumps) {
    const RankHistory rank(dump, dump.ranks.front());
    const auto host = rank.host();
    if (!host || host->end || host->action != static_cast<int>(HostPhase::kMeets)) {
      others.push_back(rank);
      continue;
    }
    wait.since = wait.waiting.empty() ? host->begin : std::min(wait.since, host->begin);
    wait.seconds = std::max(wait.seconds, dump.at - host->begin);
    wait.at = {0, std::max(wait.at.step, host->step), 0};
    wait.waiting.push_back(rank.number());
  }
  for (const int rank : without_dump) wait.absent.push_back({.rank = rank});
  for (const RankHistory& rank : others) {
    if (rank.has_reached(HostPhase::kMeets, wait.at.step)) continue;
    wait.absent.push_back({.rank = rank.number(), .obstacle = rank.obstacle_of_host()});
  }
  if (wait.waiting.empty() || wait.absent.empty()) return std::nullopt;
  return wait;
}

/// "rank 5 (pipeline rank 2, stage 2)"; without a pipeline "rank 5".
std::string rank_in_words(const RankHistory& rank, bool has_pipeline, int stage) {
  if (!has_pipeline) return concat("rank ", rank.number());
  return concat("rank ", rank.number(), " (pipeline rank ", rank.pipeline_rank(),
                stage < 0 ? "" : concat(", stage ", stage), ")");
}

/// The rank that waits for nobody, of the wait that comes first.
std::string root_in_words(const std::vector<CollectiveWait>& waits, const Ranks& ranks) {
  if (waits.empty() || waits.front().of_hosts) return "";
  const CollectiveWait& wait = waits.front();
  const auto absence = std::ranges::find_if(
      wait.absent, [](const Absence& a) { return a.obstacle && !a.waits_itself; });
  if (absence == wait.absent.end()) return "";
  const RankHistory& rank = ranks.at(absence->rank);
  const RankHistory& first = ranks.at(wait.waiting.front());
  const bool has_pipeline = rank.has_pipeline();
  const Obstacle& obstacle = *absence->obstacle;
  const DumpedAction& held = rank.action(obstacle.at);
  const DumpedAction& awaited = first.action(wait.at);
  std::string text = rank_in_words(rank, has_pipeline, held.stage);
  switch (obstacle.kind) {
    case Obstacle::Kind::kAction:
      text += concat(" was, for ", std::lround(obstacle.seconds * 1e3), " ms, in step ",
                     obstacle.at.step, ", ", held.lane, " lane: ", held.text);
      break;
    case Obstacle::Kind::kReady:
      text += concat(" could have begun, in step ", obstacle.at.step, ", ", held.lane,
                     " lane: ", held.text);
      break;
    case Obstacle::Kind::kHost:
      text += concat(" had not issued, in step ", obstacle.at.step, ", ", held.lane,
                     " lane: ", held.text);
      break;
  }
  return concat(text, "; ", rank_in_words(first, has_pipeline, awaited.stage), " waited for it in ",
                awaited.text);
}

}  // namespace

std::optional<ActionRecord> record_at(std::span<const ActionRecord> records, double time) {
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->begin > time) continue;
    ActionRecord found = *record;
    if (found.end && *found.end > time) found.end.reset();
    return found;
  }
  return std::nullopt;
}

FlightDiagnosis diagnose(std::span<const FlightDump> dumps) {
  FlightDiagnosis diagnosis;
  Ranks ranks;
  for (const FlightDump& dump : dumps) {
    for (const DumpedRank& rank : dump.ranks) ranks.emplace(rank.rank, RankHistory(dump, rank));
  }
  for (int rank = 0; rank < dumps.front().world_size; ++rank) {
    if (!ranks.contains(rank)) diagnosis.without_dump.push_back(rank);
  }
  std::set<std::pair<int, ActionAt>> held_up;  // ranks, and the collectives in which they wait
  for (auto& [meeting, wait] : collectives_in_progress(ranks)) {
    wait.absent = absent_from(meeting, wait, ranks);
    if (wait.absent.empty()) {
      const bool others_have_ended =
          wait.waiting.size() < ranks.at(wait.waiting.front()).group(wait.at).size();
      if (others_have_ended || wait.seconds < kLong) continue;
      wait.all_came = true;
      wait.absent = behind_in(wait, ranks);
    }
    for (const int rank : wait.waiting) {
      held_up.emplace(rank, ranks.at(rank).action_in(meeting).value());
    }
    diagnosis.waits.push_back(std::move(wait));
  }
  if (auto wait = wait_of_hosts(dumps, diagnosis.without_dump)) {
    diagnosis.waits.push_back(*std::move(wait));
  }
  for (CollectiveWait& wait : diagnosis.waits) {
    for (Absence& absence : wait.absent) {
      absence.waits_itself = absence.obstacle &&
                             absence.obstacle->kind == Obstacle::Kind::kAction &&
                             held_up.contains({absence.rank, absence.obstacle->at});
    }
  }
  std::ranges::stable_sort(diagnosis.waits, {}, [](const CollectiveWait& wait) {
    const bool follows = std::ranges::all_of(wait.absent, &Absence::waits_itself);
    return std::pair(follows, wait.since);
  });
  diagnosis.root = root_in_words(diagnosis.waits, ranks);
  return diagnosis;
}

}  // namespace tessera
