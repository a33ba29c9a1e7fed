#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rank_crew.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/trainer/records.h"

namespace tessera {

/// Writes the checkpoints of one process's ranks, one at a time. After begin(), the next step
/// copies the state as it is before it (with_snapshot), or copy() does without one; then threads
/// write the files, poll() sees when those of all processes are durable and has the checkpoint
/// published, by a thread of the first process. Every process must call the same methods in the
/// same order; calls with `crew` are jobs of its ranks, between steps.
class CheckpointSaver {
 public:
  /// `run`: what the run's checkpoints say of it (describe_run). `program`: the executors' number
  /// of the step with a snapshot.
  CheckpointSaver(const TrainingPlan& plan, Manifest run, RankCrew& crew, std::size_t program,
                  Storage& storage);
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Takes the memory for copies now rather than at the first begin().
  void prepare();
  /// Makes the folder for a checkpoint of the state after `step` steps; nothing may be in flight.
  /// An Error{kIo} of any process is thrown in all of them, and nothing is in flight then.
  void begin(const std::string& folder, std::int64_t step, std::int64_t samples,
             const std::optional<LossScalerState>& loss_scaler,
             const std::optional<BestEvaluation>& best, std::vector<Fp8History> fp8_histories);
  bool in_flight() const { return phase_ != Phase::kNone; }
  /// The state has not been copied yet: it must not change but by a step of the program.
  bool wants_copy() const { return phase_ == Phase::kBegun; }
  /// Copies it, and begins to write.
  void copy();
  /// Begins to write what a step has copied.
  void write();
  /// Gives the record of the checkpoint that was in flight; nothing while it is. Throws as begin().
  std::optional<SaveRecord> poll();
  /// Waits for the record.
  SaveRecord finish();

 private:
  enum class Phase { kNone, kBegun, kWriting, kPublishing };
  using Clock = std::chrono::steady_clock;

  template <typename T>
  std::vector<T> gather_processes(const T& own);
  std::vector<SaveTask*> tasks() const;
  SavePart part_of_all();
  void wait();
  void forget_tasks();
  [[noreturn]] void give_up();
  void start_publishing();
  bool is_first() const { return crew_.first_rank() == 0; }

  const TrainingPlan& plan_;
  Manifest manifest_;
  RankCrew& crew_;
  const std::size_t program_;
  Storage& storage_;
  std::vector<RankSave*> saves_;    ///< by local rank
  std::unique_ptr<SaveTask> task_;  ///< of this process: the folder, the manifest
  Phase phase_ = Phase::kNone;
  std::string folder_;
  SaveRecord record_;
  Clock::time_point began_{};
};

}  // namespace tessera
