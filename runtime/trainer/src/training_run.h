#pragma once

#include <exception>
#include <vector>

#include "step_gate.h"
#include "tessera/collectives/process_group.h"
#include "tessera/trainer/trainer.h"

namespace tessera {

/// One call of Trainer::train: the state that the ranks of this process share.
///
/// Where the run spans processes, rank 0's process decides after each step whether there is another
/// one. It tells the first rank of every other process over a group of their own, and that rank its
/// neighbours through the gate.
class TrainingRun {
 public:
  TrainingRun(const TrainingPlan& plan, const Model& model, const BatchSource& source,
              const Trainer::OnStep& on_step, const Trainer::OnNote& on_note);

  TrainingSummary run();

 private:
  /// What a rank leaves behind. Written by its own thread only, read after all have ended.
  struct RankResult {
    MemoryPeak memory;
    Traffic traffic;
  };
  /// What the steps come to: as much for a million of them as for one.
  struct Totals {
    std::int64_t steps = 0;
    double first_loss = 0.0, last_loss = 0.0;
    std::int64_t tokens = 0, first_tokens = 0;
    double seconds = 0.0, first_seconds = 0.0;
    TimelineSummary timeline, first_timeline;  ///< sums over steps; if they are traced

    void add(const StepRecord& record);
    void add(const TimelineSummary& step);
    /// Without the first step, which warms up: threads, caches, fresh memory.
    double steady_rate() const;
    TimelineSummary steady_timeline() const;
  };
  /// What rank 0 tells after a step.
  struct Verdict {
    StepRecord record;
    bool go_on = true;
  };

  /// True for the rank that speaks for this process.
  bool leads(int rank) const { return rank == first_rank_; }
  void run_rank(int rank, ProcessGroup& world);
  /// All steps of one rank.
  void run_steps(int rank, Executor& executor, const Memory& memory, ProcessGroup* leaders);
  /// Gathers what all ranks of all processes leave behind.
  void gather_results(int rank);
  /// The trained parameters and their hash, as far as they are wanted.
  void gather_parameters(int rank, Executor& executor);
  /// Tells the caller of a step, after the first of what plan and executor have to say, and asks
  /// it. Returns whether to go on; what goes wrong here is no rank's failure and is kept for run()
  /// to throw.
  bool report(const StepRecord& record, Executor& executor);
  static void check_tokens(const StepRecord& record);
  void check_loss(const StepRecord& record) const;
  /// After a report that went wrong: they wait for results of ranks that have left.
  void end_other_processes();
  TrainingSummary summarise();

  const TrainingPlan& plan_;
  const Model& model_;
  const BatchSource& source_;
  const Trainer::OnStep& on_step_;
  const Trainer::OnNote& on_note_;
  const int first_rank_;
  StepGate gate_;
  std::vector<RankResult> ranks_;  // of all processes

  Totals totals_;  // of rank 0's records, in every process
  // Of rank 0.
  TrainingSummary summary_;
  std::exception_ptr report_error_;
};

}  // namespace tessera
