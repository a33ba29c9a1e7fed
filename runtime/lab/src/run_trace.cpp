#include "tessera/lab/run_trace.h"

#include <algorithm>
#include <array>

#include "tessera/core/error.h"

namespace tessera {

std::vector<DumpedLane> whole_step(const Schedule& schedule, const std::vector<ActionSpan>& spans,
                                   int program) {
  require(!spans.empty(), ErrorCode::kInvalidArgument, "a step without spans has no times");
  std::vector<const ActionSpan*> by_action(schedule.actions.size());
  std::array<Lane, kLanes> ran_on = kAllLanes;
  double begin = spans.front().begin;
  for (const ActionSpan& span : spans) {
    const auto action = static_cast<std::size_t>(span.action);
    by_action.at(action) = &span;
    ran_on[static_cast<std::size_t>(schedule.actions[action].lane)] = span.lane;
    begin = std::min(begin, span.begin);
  }
  std::array<double, kLanes> lane_ends{};
  lane_ends.fill(begin);
  std::vector<double> ends;
  std::array<std::vector<ActionRecord>, kLanes> records;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    const auto lane = static_cast<std::size_t>(ran_on[static_cast<std::size_t>(action.lane)]);
    ActionRecord record{.program = program,
                        .action = static_cast<int>(i),
                        .step = spans.front().step,
                        .begin = lane_ends[lane]};
    if (by_action[i] != nullptr) {
      record.begin = by_action[i]->begin;
      record.end = by_action[i]->end;
    } else {
      for (const int wait : action.waits) {
        record.begin = std::max(record.begin, ends[static_cast<std::size_t>(wait)]);
      }
      record.end = record.begin;
    }
    lane_ends[lane] = *record.end;
    ends.push_back(*record.end);
    records[lane].push_back(record);
  }
  std::vector<DumpedLane> lanes;
  for (std::size_t lane = 0; lane < records.size(); ++lane) {
    if (records[lane].empty()) continue;
    lanes.push_back({std::string(to_string(kAllLanes[lane])), std::move(records[lane])});
  }
  return lanes;
}

RunTrace::RunTrace(const DumpWriter& flight, std::vector<StepMemory> memory)
    : flight_(flight),
      run_(flight.describe_run()),
      // Times are told from the run's beginning: since 1970 a double has but a quarter of a
      // microsecond.
      events_(0.0) {
  for (std::size_t p = 0; p < memory.size(); ++p) {
    run_.programs.at(p).memory = std::move(memory[p]);
  }
  run_.sees_ends = true;  // by the executors' times
}

/// The records of a rank's host in a step that are not told already.
std::vector<ActionRecord> RunTrace::host_records(int rank, std::size_t program, std::int64_t step,
                                                 bool ended) {
  std::vector<ActionRecord> all = flight_.recorder(rank).host().records();
  double& until = added_[rank].until;
  std::erase_if(all, [&](const ActionRecord& record) {
    const auto phase = static_cast<HostPhase>(record.action);
    const bool belongs = record.program == static_cast<int>(program) || phase == HostPhase::kMeets;
    return !belongs || record.step != step || record.begin < until || (ended && !record.end) ||
           phase == HostPhase::kOutside;
  });
  if (!all.empty()) until = all.back().end.value_or(all.back().begin);
  for (ActionRecord& record : all) record.program = flight_.program_of(rank, record.program);
  return all;
}

/// On the trace's clock, and with steps counted from 1.
void RunTrace::add_records(DumpedRank rank) {
  const double ahead = flight_.clock() - flight_.origin().began;
  const auto in_words = [&](std::vector<ActionRecord>& records) {
    for (ActionRecord& record : records) {
      ++record.step;
      record.begin += ahead;
      if (record.end) *record.end += ahead;
    }
  };
  in_words(rank.host);
  for (DumpedLane& lane : rank.lanes) in_words(lane.records);
  run_.noticed = recorder_seconds() + ahead;
  run_.ranks = {std::move(rank)};
  events_.add(run_);
  run_.ranks.clear();
}

void RunTrace::add(int rank, std::size_t program, std::int64_t step,
                   const std::vector<ActionSpan>& spans) {
  if (spans.empty()) return;
  const int of_all = flight_.program_of(rank, static_cast<int>(program));
  DumpedRank done{
      .rank = rank,
      .groups = {},
      .lanes = whole_step(*flight_.schedules().at(static_cast<std::size_t>(of_all)), spans, of_all),
      .host = {}};
  const std::lock_guard lock(mutex_);
  done.host = host_records(rank, program, step, true);
  added_[rank].last_step = step;
  add_records(std::move(done));
}

void RunTrace::add_unfinished(std::size_t program, std::int64_t step) {
  const std::lock_guard lock(mutex_);
  for (int rank = flight_.first_rank(); rank < flight_.first_rank() + flight_.ranks(); ++rank) {
    if (added_[rank].last_step == step) continue;
    const double before = added_[rank].until;
    DumpedRank left{
        .rank = rank, .groups = {}, .lanes = {}, .host = host_records(rank, program, step, false)};
    for (const Lane lane : kAllLanes) {
      std::vector<ActionRecord> records = flight_.recorder(rank).ring(lane).records();
      std::erase_if(records, [&](const ActionRecord& record) {
        return record.program != static_cast<int>(program) || record.step != step ||
               record.begin < before;
      });
      for (ActionRecord& record : records) {
        record.program = flight_.program_of(rank, record.program);
      }
      if (!records.empty()) left.lanes.push_back({std::string(to_string(lane)), records});
    }
    if (!left.lanes.empty() || !left.host.empty()) add_records(std::move(left));
  }
}

std::string RunTrace::take() {
  const std::lock_guard lock(mutex_);
  return to_lines(events_.take());
}

nlohmann::ordered_json RunTrace::frame() {
  const std::lock_guard lock(mutex_);
  nlohmann::ordered_json frame = trace_frame(run_, flight_.origin().began);
  frame["otherData"]["command"] = command_of_process();
  return frame;
}

}  // namespace tessera
