#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/sharding/executor.h"
#include "tessera/sharding/flight_recorder.h"
#include "tessera/sharding/schedule.h"

// A dump: what the ranks of one process have done lately, as a JSON file. Times are seconds since
// 1970 by the clock of rank 0's process, steps count from 1.
namespace tessera {

/// An action of a schedule, for a reader that has no schedule.
struct DumpedAction {
  std::string lane;
  std::string text;  ///< describe()
  /// The name of the communicator, of collectives and messages; "": no ranks meet. Those that meet
  /// are at the same place among the actions of their programs that are on it.
  std::string group;
  std::int64_t sent_bytes = 0;             ///< by one rank
  std::vector<int> waits, previous_waits;  ///< see Action
  int stage = -1;       ///< of a pipeline: whose pass it is, or whose message; -1: of none
  int micro_step = -1;  ///< the same, for a trace; not written
};

struct DumpedProgram {
  std::string purpose;    ///< "train", "evaluate"
  int pipeline_rank = 0;  ///< whose ranks run it
  std::vector<DumpedAction> actions;
  std::optional<StepMemory> memory{};  ///< of a rank, for a trace; not written
};
DumpedProgram describe_program(const Schedule& schedule);

struct DumpedLane {
  std::string name;
  std::vector<ActionRecord> records;  ///< the oldest first
};

struct DumpedRank {
  int rank = 0;
  std::map<std::string, std::vector<int>> groups;  ///< the ranks of each group of DumpedAction
  std::vector<DumpedLane> lanes;                   ///< those that have worked
  std::vector<ActionRecord> host;
};

struct FlightDump {
  std::string path;
  std::string run;      ///< the same in all processes of a run
  int number = 1;       ///< of the dumps that the process has written
  bool failed = false;  ///< written on a failure; else somebody has asked for it
  std::string reason;
  double noticed = 0.0;  ///< when the process learnt of the failure, or was asked
  /// The moment to look at: that, or when the first process noticed. What has happened since, such
  /// as the late arrival of a rank that others had given up, is in the records too.
  double at = 0.0;
  std::string host;
  std::int64_t pid = 0;
  std::string strategy, mesh;
  int world_size = 1;
  /// Records end when the action does. If not, on a GPU, they begin when it is issued, and end when
  /// the host has seen the end of the step.
  bool sees_ends = true;
  /// Those of all pipeline ranks, one after the other, each with as many. Records name programs by
  /// their index here.
  std::vector<DumpedProgram> programs;
  std::vector<DumpedRank> ranks;

  int pipeline_ranks() const { return programs.empty() ? 1 : programs.back().pipeline_rank + 1; }
};

nlohmann::ordered_json to_json(const FlightDump& dump);
/// Throws Error{kNotFound, kIo, kConfig} that names the file, if it is no dump or an other
/// version's.
FlightDump read_flight_dump(const std::string& path);
/// The dumps in `paths`, which are files or folders: the last one of each process, by rank, or, if
/// there was a failure, those that were written on it. Of folders those of the newest run. Throws
/// as read_flight_dump; Error{kNotFound} if there is none, Error{kConfig} if files are of several
/// runs.
std::vector<FlightDump> read_flight_dumps(std::span<const std::string> paths);

/// An action of a run.
struct ActionAt {
  int program = 0;  ///< index in FlightDump::programs
  std::int64_t step = 0;
  int action = 0;
  auto operator<=>(const ActionAt&) const = default;
};

/// Something that a rank did not get beyond.
struct Obstacle {
  enum class Kind : std::uint8_t {
    kAction,  ///< `at` runs
    kReady,   ///< `at` could run, and does not: its thread or the process stands still
    kHost,    ///< the host's thread has not issued `at`: see `phase`
  };
  Kind kind = Kind::kAction;
  ActionAt at;
  HostPhase phase = HostPhase::kOutside;
  double since = 0.0;    ///< of kAction and kHost
  double seconds = 0.0;  ///< from then to the dump
};

/// A rank that others waited for, in `at`, which it had not begun.
struct Absence {
  int rank = 0;
  std::optional<Obstacle> obstacle{};  ///< none: its process has left no dump
  bool waits_itself = false;           ///< the obstacle is a collective that others are absent from
};

/// A collective in which ranks wait.
struct CollectiveWait {
  ActionAt at;
  /// Not the action, but the exchange of the processes before its step; ranks stand for their
  /// processes.
  bool of_hosts = false;
  std::vector<int> waiting;
  /// Everybody had come, and it did not end: `absent` are ranks that were still at what the others
  /// had ended.
  bool all_came = false;
  double since = 0.0;    ///< the first of them
  double seconds = 0.0;  ///< that it has waited
  std::vector<Absence> absent;
};

/// The diagnosis from the dumps of one run.
struct FlightDiagnosis {
  std::vector<int> without_dump;      ///< ranks
  std::vector<CollectiveWait> waits;  ///< those first whose absent ranks wait for nobody else
  /// In a sentence without a full stop: which rank all others wait for, where and in which action,
  /// and who waits for it first. Empty if no rank waits for one that waits for nobody.
  std::string root;
};
/// `dumps` are of one run.
FlightDiagnosis diagnose(std::span<const FlightDump> dumps);

/// The last record of a lane or host that had begun at `time`, if any; one that ended later has no
/// end.
std::optional<ActionRecord> record_at(std::span<const ActionRecord> records, double time);

}  // namespace tessera
