#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/lab/dump_writer.h"
#include "tessera/lab/trace.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/timeline.h"

namespace tessera {

/// Every action of a step, by lane: those without work, which have no span, are over when their
/// lane and what they wait for are. Lanes that share a stream are one. `spans`: of the step, at
/// least one.
std::vector<DumpedLane> whole_step(const Schedule& schedule, const std::vector<ActionSpan>& spans,
                                   int program = 0);

/// The actions of this process's ranks in the steps that are traced. The trace's time 0 is the
/// run's beginning, on the clock of rank 0's process, so events of all processes make one trace.
class RunTrace {
 public:
  /// `flight`, which knows the ranks and has begun, must outlive it. `memory`: by
  /// program, as DumpWriter::schedules() has them.
  RunTrace(const DumpWriter& flight, std::vector<StepMemory> memory);

  /// A rank has done a step, counted from 0: when it ran by the rank's executor. Safe from any
  /// thread.
  void add(int rank, std::size_t program, std::int64_t step, const std::vector<ActionSpan>& spans);
  /// A step has failed, or is not over: of ranks that have not done it, what their recorders hold.
  void add_unfinished(std::size_t program, std::int64_t step);
  /// The events since the last call, as lines of a trace; "": none.
  std::string take();
  /// For the head of the trace.
  nlohmann::ordered_json frame();

 private:
  struct Added {
    std::int64_t last_step = -1;
    double until = 0.0;  ///< of the host's records, in recorder_seconds()
  };
  std::vector<ActionRecord> host_records(int rank, std::size_t program, std::int64_t step,
                                         bool ended);
  void add_records(DumpedRank rank);

  const DumpWriter& flight_;
  std::mutex mutex_;
  FlightDump run_;              // guarded by mutex_
  TraceEvents events_;          // guarded by mutex_
  std::map<int, Added> added_;  // guarded by mutex_
};

}  // namespace tessera
