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
#include "tessera/trainer/training_loop.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

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

  using OnStep = tessera::OnStep;
  using OnNote = tessera::OnNote;
  using OnEvaluation = tessera::OnEvaluation;
  using OnSave = tessera::OnSave;
  using OnParameter = tessera::OnParameter;

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
