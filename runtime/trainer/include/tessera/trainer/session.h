#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/sharding/executor.h"
#include "tessera/trainer/records.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// A training run under the caller's own loop, from its first step or from a checkpoint
/// (CheckpointOptions::resume); its save() is asked for, whatever CheckpointOptions say. Its ranks
/// are threads of this process (or of several: then every process makes the same session and calls
/// the same methods in the same order); between calls they wait.
///
///   Session session(model, data, {.strategy = "full_shard", .ranks = 4, .steps = 1000});
///   while (const auto record = session.step()) {
///     if (record->loss < 1.0) session.stop();
///   }
///   save(session.parameters());
///
/// The model and the data must outlive the session. If a rank fails, the others are stopped, and
/// the call in progress throws an Error that names the rank and the cause; what a BatchSource has
/// thrown is nested in it. After that only destruction is allowed.
class Session {
 public:
  /// The model's results for samples, in their order.
  struct Outputs {
    Shape shape;  ///< the last layer's, for all samples
    std::vector<float> values;
  };

  /// Plans the run, starts its ranks and initialises the parameters. Throws as Trainer does.
  /// `evaluation` is the data of evaluate(), if that is wanted.
  Session(const Model& model, const BatchSource& source, const TrainerOptions& options,
          const BatchSource* evaluation = nullptr);
  /// A run that is planned already. The plan outlives the session.
  explicit Session(const TrainingPlan& plan);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const TrainingPlan& plan() const;
  /// Optimizer steps so far.
  std::int64_t steps() const;

  /// One optimizer step at the plan's learning rate, or at one's own. Nothing once there have been
  /// TrainerOptions::steps, or after stop(). The record is the same in all processes but for its
  /// seconds and bytes.
  std::optional<StepRecord> step();
  std::optional<StepRecord> step(double learning_rate);
  /// Does a step as step(), but the next one begins, at the plan's learning rate, before this one's
  /// results are read: the device need not wait for the host. That step's record comes from the
  /// next call of step_ahead() or step(), and until then nothing else can be asked for but notes().
  /// With TrainerOptions::overlap_steps; else the same as step().
  std::optional<StepRecord> step_ahead();

  /// The mean loss on TrainerOptions::evaluation_samples samples of the evaluation's data, without
  /// dropout. The same bits for every strategy and any number of ranks. Throws
  /// Error{kInvalidArgument} if the session has no such data.
  EvaluationRecord evaluate();

  /// Gives the last layer's output for `inputs`, without dropout: whole samples of the source's
  /// shape and dtype, (N, ...) in host memory, as many as one likes. A loss is left out, and what
  /// it would have compared with targets comes back: the logits of ops::cross_entropy, the
  /// predictions of ops::squared_error. The ranks share the samples; the bits do not depend on how.
  /// Needs TrainerOptions::forward. Every process is given the same inputs and gets all outputs.
  ///
  /// `targets`: for a last layer that returns something else and reads them; as many samples, in
  /// the source's shape and dtype. Without them int32 targets are -1 and others 0.
  Outputs forward(const TensorView& inputs, const TensorView& targets = {});

  /// The fp32 master weights of all ranks, in order of declaration.
  std::vector<FullParameter> parameters();
  /// Hands over one parameter after the other: no more than one unit is unsharded at a time.
  void parameters(const std::function<void(FullParameter)>& receive);
  /// Overwrites the parameters. `values` is asked for every one, perhaps repeatedly and by several
  /// threads at once. The optimizer's state stays as it is.
  void set_parameters(const ParameterValues& values);
  /// Hands over the training state of each rank of this process as it is between steps, with a
  /// stream of its device: on the rank's own thread, of several ranks at once. The tensors lie
  /// where they do as long as the session lives; the next step changes them.
  void states(const std::function<void(const TrainingState& state, Stream& stream)>& receive);

  /// Writes a checkpoint of the run as it is after steps() steps to `folder`, as step_N (see
  /// checkpoint_folder.h); a run that resumes from it gives the bits that this one gives from here
  /// on, whatever its ranks and strategy are. Returns its path, "" but in rank 0's process, when it
  /// is durable. Throws Error{kIo} in all processes if it cannot be written; the session goes on.
  std::string save(const std::string& folder);
  /// Saves without waiting. The next step copies the state as it is before it, beside its work
  /// (with_snapshot in plan.h); then threads write it. One checkpoint can be in flight.
  void begin_save(const std::string& folder);
  /// The lowest loss of the run's evaluations, which its checkpoints have from now on; at first
  /// that of the checkpoint that the run went on from, if that has one.
  const std::optional<BestEvaluation>& best_evaluation() const;
  void set_best_evaluation(const BestEvaluation& best);
  /// Gives the record of the checkpoint in flight, once it is durable; nothing before, or if there
  /// is none. Throws as save() does. It is for the time between steps: work that is left when the
  /// files are written begins here. Every process must call it as often.
  std::optional<SaveRecord> poll_save();
  /// Waits for the checkpoint in flight; nothing if there is none.
  std::optional<SaveRecord> finish_save();

  /// No further step, in any process, although only one may ask for it. Safe from any thread and
  /// while a step runs, which ends first.
  void stop();
  /// Gives the run up: a call in progress fails at its next action, and so do those in other
  /// processes. Safe from any thread. Only destruction may follow.
  void abort(std::string_view reason) noexcept;

  /// Gives every process the texts of all, in order of the processes; a run of one gets its own.
  std::vector<std::string> exchange(const std::string& own);

  /// Notes of executor and plan on how the run goes, a sentence each.
  std::vector<std::string> notes();
  /// How many steps, or batches of an evaluation, TrainerOptions::trace holds so far. The file is
  /// whole after each of them; a step that fails is added as far as this process knows it.
  std::int64_t traced_steps() const;
  /// Measured memory and counted traffic of each rank, of all processes.
  std::vector<RankUse> use();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
