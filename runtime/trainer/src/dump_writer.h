#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/sharding/executor.h"
#include "tessera/trainer/flight_dump.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// How the reason begins for which a process ends a run in which no rank has failed: the others
/// write no dump of that.
inline constexpr std::string_view kEndedInOrder = "the run was ended: ";

/// Of a run's processes, as they have told each other at its start.
struct RunOrigin {
  std::string name;          ///< the same in all of them
  double clock_ahead = 0.0;  ///< seconds of this process's wall clock before rank 0's process
};

/// Keeps the recorders of the ranks of this process, and writes what they hold.
class DumpWriter {
 public:
  /// Both must outlive it.
  DumpWriter(const TrainingPlan& plan, std::vector<const Schedule*> schedules);
  ~DumpWriter();
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;

  int first_rank() const { return first_rank_; }
  FlightRecorder& recorder(int rank) {
    return *recorders_[static_cast<std::size_t>(rank - first_rank_)];
  }
  /// From here on requests are served.
  void begin(RunOrigin run);

  /// A rank has failed: the first time, writes a dump, and notes where. Not if no step has begun.
  void fail(const FlightRecorder::Failure& failure) noexcept;

 private:
  void write(bool failed, std::string_view reason, double at) noexcept;
  FlightDump take(bool failed, std::string_view reason, double at) const;
  DumpedRank take_rank(int rank) const;

  const TrainingPlan& plan_;
  const std::vector<const Schedule*> schedules_;
  const int first_rank_;
  RunOrigin run_;
  std::vector<std::unique_ptr<FlightRecorder>> recorders_;
  std::mutex mutex_;
  bool has_failed_ = false;  // guarded by mutex_
  int written_ = 0;          // guarded by mutex_
};

}  // namespace tessera
