#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/lab/run_trace.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// The steps of a run, or batches of its evaluation, that are traced. Throws Error{kConfig} if the
/// run has none of those that are asked for. `done`: steps before it.
StepRange steps_to_trace(const TrainerOptions& options, std::int64_t done);

/// A trace file that is whole after every call.
class TraceFile {
 public:
  explicit TraceFile(std::string path) : path_(std::move(path)) {}
  /// A pipe's end is written here: nothing of it can be taken back.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  /// Throws Error{kIo}.
  void add(const std::string& head, const std::string& lines);
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  std::optional<OutputFile> file_;
};

/// The trace that a session makes of TrainerOptions::trace.
class StepTrace {
 public:
  /// All but the options outlive it. `done`: steps before the run. `programs`: the session's, by
  /// pipeline rank.
  StepTrace(const TrainingPlan& plan, std::int64_t done,
            const std::vector<std::vector<Program>>& programs, const DumpWriter& dumps);

  bool of_evaluation() const { return plan_.options.trace.of_evaluation; }
  /// Whether a step or a batch, counted from 0, is traced.
  bool wants(std::int64_t step) const { return range_.first <= step + 1 && step < range_.last; }
  bool wants_step(std::int64_t step) const { return !of_evaluation() && wants(step); }
  /// On each rank's thread, when a step that is wanted is over.
  void add(int rank, std::size_t program, std::int64_t step, const std::vector<ActionSpan>& spans) {
    trace_.add(rank, program, step, spans);
  }
  /// Once all ranks of this process have added theirs. `leaders`: one rank of each process, this
  /// one's too; null if there is one process. Throws Error{kIo} in rank 0's process.
  void write(ProcessGroup* leaders);
  /// The run fails in `step`, or before an evaluation's next batch: adds what this process knows of
  /// it, and says where the trace is.
  void abandon(std::size_t program, std::int64_t step) noexcept;
  /// How many are in the file.
  std::int64_t steps() const { return steps_; }

 private:
  void append(const std::string& lines);
  bool writes() const { return first_rank_ == 0; }

  const TrainingPlan& plan_;
  const int first_rank_;
  const StepRange range_;
  RunTrace trace_;
  TraceFile file_;
  std::int64_t steps_ = 0;
};

}  // namespace tessera
