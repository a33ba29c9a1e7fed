#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint_saver.h"
#include "chosen_samples.h"
#include "rank_crew.h"
#include "resume.h"
#include "step_trace.h"
#include "tessera/core/error.h"
#include "tessera/lab/dump_writer.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/session.h"

namespace tessera {

class Session::Impl {
 public:
  /// `own`: the plan, if the session keeps it.
  Impl(std::unique_ptr<const TrainingPlan> own, const TrainingPlan& plan);

  const TrainingPlan& plan() const { return plan_; }
  std::int64_t steps() const { return steps_; }
  /// Beside the plan's.
  const std::vector<std::string>& notes() const { return notes_; }
  RateOfStep planned_rate() const {
    return [this](std::int64_t taken) { return plan_.options.learning_rate.at(taken); };
  }
  void stop() { stopping_ = true; }
  void abort(std::string_view reason) noexcept { crew_->abort(reason); }

  std::optional<StepRecord> step(const RateOfStep& rate, bool ahead);
  EvaluationRecord evaluate();
  const std::optional<BestEvaluation>& best_evaluation() const { return best_; }
  void set_best_evaluation(const BestEvaluation& best) { best_ = best; }
  Outputs forward(const TensorView& inputs, const TensorView& targets);
  void begin_save(const std::string& folder);
  std::optional<SaveRecord> poll_save() { return saver_ ? saver_->poll() : std::nullopt; }
  std::optional<SaveRecord> finish_save();
  /// A job that no step may overlap.
  void run_alone(const RankCrew::Job& job) {
    require_none_begun();
    run(job);
  }
  bool wants_copy() const { return saver_ != nullptr && saver_->wants_copy(); }
  /// Runs a job that changes the state.
  void change_state(const RankCrew::Job& job) {
    require_none_begun();
    if (wants_copy()) saver_->copy();
    run(job);
  }
  void require_none_begun() const {
    require(!begun_, ErrorCode::kInvalidArgument,
            "a step has begun; ask for its record first: call step()");
  }
  void run(const RankCrew::Job& job) {
    guarded([&] { crew_->run(job); });
  }
  bool leads(const RankSeat& seat) const { return seat.rank == crew_->first_rank(); }
  std::vector<RankUse> use();
  std::int64_t traced_steps() const { return trace_ != nullptr ? trace_->steps() : 0; }

 private:
  template <typename Body>
  void guarded(const Body& body) const;
  template <typename Body>
  void traced(std::size_t program, const Body& body);
  void write_trace();
  void introduce();
  void resume();
  std::string load(const ResumePoint& point, bool again);
  void load_initial();
  CheckpointSaver& saver();
  std::optional<LossScalerState> loss_scaler();
  std::vector<Fp8History> fp8_histories();
  bool agrees_to_stop(std::int64_t next);
  StepRecord record_of(const StepResult& result, const RankSeat& seat, double seconds) const;

  const std::unique_ptr<const TrainingPlan> own_;
  const TrainingPlan& plan_;
  const BatchSource& source_;
  std::optional<LaterSamples> later_;  ///< of a run that goes on
  std::optional<FirstSamples> evaluated_;
  GivenSamples given_;        ///< of forward()
  std::size_t forward_ = 0;   ///< the program's index
  std::size_t snapshot_ = 0;  ///< the program's index
  std::int64_t steps_ = 0;
  std::int64_t skipped_ = 0;  ///< of the steps
  std::int64_t offset_ = 0;   ///< of the samples, where the step was of another size before
  std::optional<BestEvaluation> best_;
  bool begun_ = false;  ///< the step after those
  std::vector<std::string> notes_;
  std::string save_note_;  ///< on what the checkpoint at hand saves; "": none
  std::chrono::steady_clock::time_point last_ended_{};  ///< seen by the rank that leads
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<DumpWriter> dumps_;
  std::unique_ptr<StepTrace> trace_;  ///< null: none is made
  std::unique_ptr<RankCrew> crew_;    ///< its threads use the others
  std::unique_ptr<CheckpointSaver> saver_;
};

/// Memory that ran out is told with what would fit. What this run had taken is free again then: the
/// rest is what others hold.
template <typename Body>
void Session::Impl::guarded(const Body& body) const {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    std::throw_with_nested(
        Error(error.code(),
              concat(error.what(), "; ", memory_advice(plan_, available_bytes(plan_.options)))));
  }
}

/// Runs steps that may be traced; the trace of one that fails is written as far as it goes.
template <typename Body>
void Session::Impl::traced(std::size_t program, const Body& body) {
  try {
    body();
  } catch (...) {
    if (trace_ != nullptr) trace_->abandon(program, steps_);
    throw;
  }
}

}  // namespace tessera
