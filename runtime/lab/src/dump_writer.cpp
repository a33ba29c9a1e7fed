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
#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

constexpr const char* kAllRanks = "all";  // the group of an operation of all ranks

/// The name of the ranks that an action's meet among.
std::string group_of(const Action& action) {
  switch (action.operation->meeting) {
    case Meeting::kNone:
      return "";
    case Meeting::kAlongAxes:
      return to_string(action.axes);
    case Meeting::kWorld:
      return kAllRanks;
    case Meeting::kPair:
      return concat("pipeline rank ", action.peer);
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

std::map<std::string, std::vector<int>> groups_of(const std::vector<const Schedule*>& schedules,
                                                  int rank) {
  std::map<std::string, std::vector<int>> groups;
  for (const Schedule* const schedule : schedules) {
    for (const Action& action : schedule->actions) {
      const std::string name = group_of(action);
      if (name.empty() || groups.contains(name)) continue;
      const Mesh& mesh = schedule->mesh;
      groups[name] = mesh.group(name == kAllRanks ? mesh.axes() : action.axes, rank);
    }
  }
  return groups;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

DumpedProgram describe_program(const Schedule& schedule) {
  DumpedProgram program{.purpose = std::string(to_string(schedule.purpose)), .actions = {}};
  for (const Action& action : schedule.actions) {
    program.actions.push_back({.lane = std::string(to_string(action.lane)),
                               .text = describe(schedule, action),
                               .group = group_of(action),
                               .sent_bytes = sent_by(schedule, action),
                               .waits = action.waits,
                               .previous_waits = action.previous_waits});
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
    : options_(std::move(options)), schedules_(std::move(schedules)) {
  require(!schedules_.empty(), ErrorCode::kInvalidArgument, "a run without a schedule");
  for (int i = 0; i < options_.ranks; ++i) {
    recorders_.push_back(std::make_unique<FlightRecorder>(
        [this](const FlightRecorder::Failure& failure) { fail(failure); }));
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
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_failed_, true)) return;
  }
  write(true, failure.what, failure.seconds);
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
    } catch (const std::exception& error) {
      note = concat("what the ranks were doing could not be written: ", error.what());
    }
    if (options_.requests != nullptr) options_.requests->note(note);
  } catch (...) {  // NOLINT: nothing of this may be another failure
  }
}

DumpedRank DumpWriter::take_rank(int rank) const {
  const FlightRecorder& recorder = *recorders_[static_cast<std::size_t>(rank - first_rank())];
  DumpedRank out{.rank = rank,
                 .groups = groups_of(schedules_, rank),
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
  const auto in_words = [&](std::vector<ActionRecord>& records) {
    for (ActionRecord& record : records) {
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
    in_words(rank.host);
    for (DumpedLane& lane : rank.lanes) in_words(lane.records);
    dump.ranks.push_back(std::move(rank));
  }
  return dump;
}

}  // namespace tessera
