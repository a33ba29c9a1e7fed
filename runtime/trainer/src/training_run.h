#pragma once

#include <exception>
#include <vector>

#include "step_gate.h"
#include "tessera/collectives/process_group.h"
#include "tessera/trainer/trainer.h"

namespace tessera {

/// One call of Trainer::train: the state that its ranks share.
class TrainingRun {
 public:
  TrainingRun(const TrainingPlan& plan, const Model& model, const BatchSource& source,
              const Trainer::OnStep& on_step);

  TrainingSummary run();

 private:
  /// What a rank leaves behind. Written by its own thread only, read after all have ended.
  struct RankResult {
    MemoryPeak memory;
    Traffic traffic;
    std::int64_t control_bytes = 0;
  };

  void run_rank(int rank, ProcessGroup& world);
  /// All steps of one rank.
  void run_steps(int rank, Executor& executor, const Memory& memory);
  /// Rank 0 after each step: records it and asks the caller. Returns whether to go on; what goes
  /// wrong here is no rank's failure and is kept for run() to throw.
  bool report(const StepRecord& record);
  void check_loss(const StepRecord& record) const;
  TrainingSummary summarise();

  const TrainingPlan& plan_;
  const Model& model_;
  const BatchSource& source_;
  const Trainer::OnStep& on_step_;
  StepGate gate_;
  std::vector<RankResult> ranks_;

  // Of rank 0.
  TrainingSummary summary_;
  std::vector<StepRecord> records_;
  std::vector<TimelineSummary> timelines_;
  std::exception_ptr report_error_;
};

}  // namespace tessera
