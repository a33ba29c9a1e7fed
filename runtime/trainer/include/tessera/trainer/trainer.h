#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/timeline.h"
#include "tessera/trainer/records.h"
#include "tessera/trainer/trainer_options.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// A finished run. Everything predicted stands beside what was measured.
struct TrainingSummary {
  std::int64_t steps = 0;          ///< of this run
  std::int64_t skipped_steps = 0;  ///< of those, by loss scaling
  std::int64_t last_step = 0;      ///< of all runs since the first step
  std::int64_t saves = 0, failed_saves = 0;
  std::int64_t traced_steps = 0;  ///< see Session::traced_steps
  double first_loss = 0.0;
  double last_loss = 0.0;
  double seconds = 0.0;            ///< of the steps, without planning and initialisation
  double tokens_per_second = 0.0;  ///< without the first step, which warms up, if there are three
  double positions_per_second = 0.0;  ///< the same of StepRecord::positions
  MemoryPeak predicted_memory;        ///< of one rank; of several stages the largest one's
  MemoryPeak measured_memory;         ///< the highest over ranks, of the total and by category
  MemoryPeak predicted_host_memory;   ///< the same of offloaded state in the host's memory
  MemoryPeak measured_host_memory;
  std::int64_t predicted_disk_bytes = 0;  ///< of one rank's file on disk; 0: there is none
  std::int64_t measured_disk_bytes = 0;   ///< the largest
  Traffic predicted_traffic;              ///< of one rank, in all steps
  std::vector<Traffic> counted_traffic;   ///< by rank, of the largest stage
  /// The memory of a stage's ranks, and the bytes that they sent.
  struct Stage {
    MemoryPeak predicted_memory, measured_memory;
    Traffic predicted_traffic, counted_traffic;
  };
  std::vector<Stage> stages;  ///< of a run with several; the above are of the largest one
  std::optional<EvaluationRecord> evaluation;  ///< the last one
  bool stopped_early = false;                  ///< by TrainerOptions::patience
  std::optional<TimelineSummary> timeline;  ///< of rank 0, mean over steps; if options.time_actions
  std::string parameters_sha256;            ///< see parameters_sha256(); "" without hash_parameters
  std::vector<FullParameter> parameters;    ///< if options.gather_parameters
};

/// Trains a model with data: every rank is a thread, of this process or of several.
///
///   Trainer trainer(model, data, {.strategy = "zero2", .ranks = 2, .steps = 100});
///   trainer.train([](const StepRecord& r) { std::cout << r.loss << "\n"; return true; });
///
/// The model and the data must outlive the trainer, so temporaries are not taken.
class Trainer {
 public:
  /// Plans the run. Throws Error{kConfig} on options that do not fit together, and
  /// Error{kOutOfMemory} if the run would not fit into memory, before anything is allocated. In
  /// several processes, all must make one: they compare options, model, data and program, and
  /// Error{kConfig} in all of them names what differs; see agreement.h. `evaluation`: data to
  /// evaluate with, every TrainerOptions::evaluate_every steps and after the last.
  Trainer(const Model& model, const BatchSource& source, const TrainerOptions& options,
          const BatchSource* evaluation = nullptr);
  Trainer(const Model&&, const BatchSource&, const TrainerOptions&) = delete;
  Trainer(const Model&, const BatchSource&&, const TrainerOptions&) = delete;
  Trainer(const Model&&, const BatchSource&&, const TrainerOptions&) = delete;

  /// Options with all defaults filled in, the schedule, and what it is predicted to cost.
  const TrainingPlan& plan() const { return plan_; }

  /// Returns false to stop after the step it was told of.
  using OnStep = std::function<bool(const StepRecord&)>;
  /// Told notes for the user on how the run goes, a sentence each, before the first step: the
  /// plan's notes, and what rank 0 has found.
  using OnNote = std::function<void(const std::string&)>;

  using OnEvaluation = std::function<void(const EvaluationRecord&)>;
  using OnSave = std::function<void(const SaveRecord&)>;
  /// Told each trained parameter, one after the other; in several processes all must give one.
  using OnParameter = std::function<void(const FullParameter&)>;

  /// Trains from freshly initialised parameters, from TrainerOptions::initial_parameters, or from
  /// the checkpoint that the options name, in a session of its own; each call gives the same
  /// numbers. `on_step` is called after each step while all ranks wait, and so are the others; what
  /// they throw ends the training and comes out of here. In several processes they are called in
  /// rank 0's, and must return within TrainerOptions::timeout, for the other processes wait no
  /// longer. If a rank fails, the others are stopped, and the Error names the rank and the cause;
  /// if memory is why, also what the plan had predicted and what would fit. An exception that
  /// `source` has thrown is nested in it.
  TrainingSummary train(const OnStep& on_step = {}, const OnNote& on_note = {},
                        const OnEvaluation& on_evaluation = {}, const OnSave& on_save = {},
                        const OnParameter& on_parameter = {}) const;

 private:
  TrainingPlan plan_;
};

}  // namespace tessera
