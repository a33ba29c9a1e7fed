#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/lab/dump_requests.h"
#include "tessera/lab/flight_dump.h"
#include "tessera/sharding/flight_recorder.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// How the reason begins for which a process ends a run in which no rank has failed: the others
/// write no dump of that.
inline constexpr std::string_view kEndedInOrder = "the run was ended: ";

/// The facts that a run's processes have told each other at its start.
struct RunOrigin {
  std::string name;          ///< the same in all of them
  double clock_ahead = 0.0;  ///< seconds of this process's wall clock before rank 0's process
  double began = 0.0;        ///< by the wall clock of rank 0's process
};

/// The ranks of this process, and where their dumps go.
struct DumpOptions {
  std::string strategy;
  int first_rank = 0;
  int ranks = 1;                             ///< of this process
  bool sees_ends = true;                     ///< see FlightDump
  std::string folder{};                      ///< "": none is written
  std::shared_ptr<DumpRequests> requests{};  ///< null: nobody asks
};

/// Keeps the recorders of the ranks of this process, and writes what they hold.
class DumpWriter {
 public:
  /// `schedules`, at least one, must outlive it. All ranks run them.
  DumpWriter(DumpOptions options, std::vector<const Schedule*> schedules);
  /// By pipeline rank: those that its ranks run, for each as many.
  DumpWriter(DumpOptions options, const std::vector<std::vector<const Schedule*>>& schedules);
  ~DumpWriter();
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;

  int first_rank() const { return options_.first_rank; }
  int ranks() const { return options_.ranks; }
  /// Those of all pipeline ranks, one after the other.
  const std::vector<const Schedule*>& schedules() const { return schedules_; }
  /// The index in schedules() of a rank's program, as its executor counts.
  int program_of(int rank, int program) const;
  const RunOrigin& origin() const { return run_; }
  /// From recorder_seconds() to the wall clock of rank 0's process, as it was at begin().
  double clock() const { return clock_; }
  /// A dump without ranks, for what it says of the run.
  FlightDump describe_run() const;
  FlightRecorder& recorder(int rank) {
    return *recorders_[static_cast<std::size_t>(rank - first_rank())];
  }
  const FlightRecorder& recorder(int rank) const {
    return *recorders_[static_cast<std::size_t>(rank - first_rank())];
  }
  /// From here on requests are served.
  void begin(RunOrigin run);

  /// A rank has failed: the first time, writes a dump, and notes where. Not if no step has begun.
  void fail(const FlightRecorder::Failure& failure) noexcept;
  /// After a failure of a pipeline: FlightDiagnosis::root of the ranks of this process.
  std::string root() const;

 private:
  double clock_now() const;
  std::string find_root(const FlightRecorder::Failure& failure) const noexcept;
  void write(bool failed, std::string_view reason, double at) noexcept;
  FlightDump take(bool failed, std::string_view reason, double at) const;
  DumpedRank take_rank(int rank) const;

  const DumpOptions options_;
  const std::vector<const Schedule*> schedules_;
  const int programs_;  ///< of each rank
  RunOrigin run_;
  double clock_ = 0.0;
  std::vector<std::unique_ptr<FlightRecorder>> recorders_;
  mutable std::mutex mutex_;
  bool has_failed_ = false;  // guarded by mutex_
  std::string root_;         // guarded by mutex_
  int written_ = 0;          // guarded by mutex_
};

}  // namespace tessera
