#include "tessera/lab/dump_writer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/core/error.h"
#include "tessera/core/host_name.h"
#include "tessera/core/storage.h"
#include "tessera/lab/dump_requests.h"
#include "tessera/sharding/groups.h"
#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

constexpr const char* kAllRanks = "all";  // the group of an operation of all ranks

/// The name of the communicator that an action is on.
std::string group_of(const Schedule& schedule, const Action& action) {
  switch (action.operation->meeting) {
    case Meeting::kNone:
      return "";
    case Meeting::kAlongAxes:
      return to_string(action.axes);
    case Meeting::kWorld:
      return kAllRanks;
    case Meeting::kPair: {
      const auto pair = PipelinePair::of(action.lane, schedule.pipeline.rank, action.peer);
      return concat(to_string(pair.lane), " lane from pipeline rank ", pair.from, " to ", pair.to);
    }
  }
  return "";
}

std::int64_t sent_by(const Schedule& schedule, const Action& action) {
  if (action.operation->charge == nullptr) return 0;
  Traffic traffic;
  action.operation->charge(schedule, action, traffic);
  std::int64_t bytes = 0;
  for (const std::int64_t sent : traffic.sent_bytes) bytes += sent;
  return bytes;
}

/// The ranks that meet in an action of this rank.
std::vector<int> members_of(const Schedule& schedule, const Action& action, int rank) {
  const Mesh& mesh = schedule.mesh;
  if (action.operation->meeting != Meeting::kPair) {
    const bool all = action.operation->meeting == Meeting::kWorld;
    return mesh.group(all ? mesh.axes() : action.axes, rank);
  }
  const int of_each = mesh.world_size() / schedule.pipeline_ranks();
  const int place = rank % of_each;
  const auto [first, last] = std::minmax(schedule.pipeline.rank, action.peer);
  return {first * of_each + place, last * of_each + place};
}

std::map<std::string, std::vector<int>> groups_of(std::span<const Schedule* const> schedules,
                                                  int rank) {
  std::map<std::string, std::vector<int>> groups;
  for (const Schedule* const schedule : schedules) {
    for (const Action& action : schedule->actions) {
      const std::string name = group_of(*schedule, action);
      if (name.empty() || groups.contains(name)) continue;
      groups[name] = members_of(*schedule, action, rank);
    }
  }
  return groups;
}

std::vector<const Schedule*> in_a_row(const std::vector<std::vector<const Schedule*>>& ranks) {
  std::vector<const Schedule*> all;
  for (const auto& schedules : ranks) {
    require(schedules.size() == ranks.front().size(), ErrorCode::kInvalidArgument,
            "pipeline ranks run ", ranks.front().size(), " and ", schedules.size(), " schedules");
    all.insert(all.end(), schedules.begin(), schedules.end());
  }
  return all;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

DumpedProgram describe_program(const Schedule& schedule) {
  DumpedProgram program{.purpose = std::string(to_string(schedule.purpose)),
                        .pipeline_rank = schedule.pipeline.rank,
                        .actions = {}};
  const bool has_pipeline = schedule.pipeline_ranks() > 1;
  for (const Action& action : schedule.actions) {
    program.actions.push_back({.lane = std::string(to_string(action.lane)),
                               .text = describe(schedule, action),
                               .group = group_of(schedule, action),
                               .sent_bytes = sent_by(schedule, action),
                               .waits = action.waits,
                               .previous_waits = action.previous_waits,
                               .stage = has_pipeline ? stage_of(schedule, action) : -1,
                               .micro_step = has_pipeline ? action.micro_step : -1});
  }
  return program;
}

bool DumpRequests::write(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (write_) write_(reason);
  return static_cast<bool>(write_);
}

void DumpRequests::serve(Write write) {
  const std::lock_guard lock(mutex_);
  write_ = std::move(write);
}

DumpWriter::DumpWriter(DumpOptions options, std::vector<const Schedule*> schedules)
    : DumpWriter(std::move(options),
                 std::vector<std::vector<const Schedule*>>{std::move(schedules)}) {}

DumpWriter::DumpWriter(DumpOptions options,
                       const std::vector<std::vector<const Schedule*>>& schedules)
    : options_(std::move(options)),
      schedules_(in_a_row(schedules)),
      programs_(static_cast<int>(schedules.empty() ? 0 : schedules.front().size())) {
  require(!schedules_.empty(), ErrorCode::kInvalidArgument, "a run without a schedule");
  const int pipeline_ranks = schedules_.front()->pipeline_ranks();
  require(static_cast<int>(schedules.size()) == pipeline_ranks, ErrorCode::kInvalidArgument,
          "a dump of ", pipeline_ranks, " pipeline ranks has the schedules of ", schedules.size());
  for (int i = 0; i < options_.ranks; ++i) {
    recorders_.push_back(std::make_unique<FlightRecorder>(
        [this](const FlightRecorder::Failure& failure) { fail(failure); },
        [this] { return root(); }));
  }
}

DumpWriter::~DumpWriter() {
  if (options_.requests != nullptr) options_.requests->serve(nullptr);
}

void DumpWriter::begin(RunOrigin run) {
  run_ = std::move(run);
  clock_ = clock_now();
  if (options_.requests == nullptr) return;
  options_.requests->serve(
      [this](std::string_view reason) { write(false, reason, recorder_seconds()); });
}

void DumpWriter::fail(const FlightRecorder::Failure& failure) noexcept {
  const bool worked = std::ranges::any_of(
      recorders_, [](const auto& recorder) { return !recorder->host().records().empty(); });
  if (!worked || failure.what.find(kEndedInOrder) != std::string::npos) return;
  {
    // Whoever fails next waits until it is known who keeps whom waiting.
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_failed_, true)) return;
    root_ = find_root(failure);
  }
  write(true, failure.what, failure.seconds);
}

std::string DumpWriter::find_root(const FlightRecorder::Failure& failure) const noexcept {
  if (schedules_.front()->pipeline_ranks() == 1) return "";
  try {
    const FlightDump dump = take(true, failure.what, failure.seconds);
    return diagnose(std::span(&dump, 1)).root;
  } catch (...) {  // NOLINT: nothing of this may be another failure
    return "";
  }
}

std::string DumpWriter::root() const {
  const std::lock_guard lock(mutex_);
  return root_;
}

void DumpWriter::write(bool failed, std::string_view reason, double at) noexcept {
  namespace fs = std::filesystem;
  const std::lock_guard lock(mutex_);
  if (options_.folder.empty()) return;
  std::string note;
  try {
    FlightDump dump = take(failed, reason, at);
    dump.number = ++written_;
    const fs::path folder = options_.folder;
    const std::string path =
        (folder / concat("tessera_dump_", run_.name, "_rank", first_rank(), "_", written_, ".json"))
            .string();
    try {
      disk().make_folder(folder.string());
      write_file(
          disk(), path + ".part",
          to_json(dump).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
              "\n");
      disk().rename(path + ".part", path);
      note = concat("what the ranks were doing is in ", path, "; tessera inspect-dump ",
                    folder.string(), " tells who waited for whom");
      if (failed && !root_.empty()) note += concat("; ", root_);
    } catch (const std::exception& error) {
      note = concat("what the ranks were doing could not be written: ", error.what());
    }
    if (options_.requests != nullptr) options_.requests->note(note);
  } catch (...) {  // NOLINT: nothing of this may be another failure
  }
}

int DumpWriter::program_of(int rank, int program) const {
  return schedules_.front()->mesh.index(Axis::kPipeline, rank) * programs_ + program;
}

DumpedRank DumpWriter::take_rank(int rank) const {
  const FlightRecorder& recorder = *recorders_[static_cast<std::size_t>(rank - first_rank())];
  DumpedRank out{.rank = rank,
                 .groups = groups_of(std::span(schedules_)
                                         .subspan(static_cast<std::size_t>(program_of(rank, 0)),
                                                  static_cast<std::size_t>(programs_)),
                                     rank),
                 .lanes = {},
                 .host = recorder.host().records()};
  for (const Lane lane : kAllLanes) {
    std::vector<ActionRecord> records = recorder.ring(lane).records();
    if (!records.empty()) out.lanes.push_back({std::string(to_string(lane)), std::move(records)});
  }
  return out;
}

double DumpWriter::clock_now() const {
  return wall_seconds() - recorder_seconds() - run_.clock_ahead;
}

FlightDump DumpWriter::describe_run() const {
  const Mesh& mesh = schedules_.front()->mesh;
  FlightDump dump{.path = {},
                  .run = run_.name,
                  .reason = {},
                  .host = host_name(),
                  .pid = getpid(),
                  .strategy = options_.strategy,
                  .mesh = to_string(mesh),
                  .world_size = mesh.world_size(),
                  .sees_ends = options_.sees_ends,
                  .programs = {},
                  .ranks = {}};
  for (const Schedule* const schedule : schedules_) {
    dump.programs.push_back(describe_program(*schedule));
  }
  return dump;
}

FlightDump DumpWriter::take(bool failed, std::string_view reason, double at) const {
  const double ahead = clock_now();
  const auto in_words = [&](int rank, std::vector<ActionRecord>& records) {
    for (ActionRecord& record : records) {
      record.program = program_of(rank, record.program);
      ++record.step;
      record.begin += ahead;
      if (record.end) *record.end += ahead;
    }
  };
  FlightDump dump = describe_run();
  dump.failed = failed;
  dump.reason = reason;
  dump.noticed = dump.at = at + ahead;
  for (int i = 0; i < static_cast<int>(recorders_.size()); ++i) {
    DumpedRank rank = take_rank(first_rank() + i);
    in_words(rank.rank, rank.host);
    for (DumpedLane& lane : rank.lanes) in_words(rank.rank, lane.records);
    dump.ranks.push_back(std::move(rank));
  }
  return dump;
}

}  // namespace tessera
