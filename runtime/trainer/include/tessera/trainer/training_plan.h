#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/checkpoint/folder_lock.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/collectives/process_group.h"
#include "tessera/core/memory.h"
#include "tessera/kernels/gemm_table.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/schedule.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// The checkpoint from which a run goes on.
struct ResumePoint {
  std::string path;
  bool is_named = false;  ///< itself, not as the newest of a folder
  Manifest manifest;
};

/// The model and the data of a run. All outlive its plan.
struct RunInputs {
  const Model& model;
  const BatchSource& source;
  const BatchSource* evaluation = nullptr;  ///< the data to evaluate with; null: none
};

/// The needs of one rank, and the bytes that it sends.
struct RankCosts {
  MemoryPeak memory{};           ///< predicted peak, forward passes included
  MemoryPeak host_memory{};      ///< of its offloaded state in the host's memory
  std::int64_t disk_bytes = 0;   ///< of its file on disk; 0: it has none
  std::int64_t pool_bytes = 0;   ///< of a GPU: what its memory pool takes for that
  Traffic traffic{};             ///< predicted, of one step
  Traffic evaluation_traffic{};  ///< of one evaluation
  /// Bytes of its part of a checkpoint, and of host memory for its snapshot; 0: none is written.
  std::int64_t checkpoint_bytes = 0;
  std::int64_t snapshot_bytes = 0;
};

/// A run before it runs: the actions of every rank, and their costs. Its own costs are those of a
/// rank of the stage that needs most memory.
struct TrainingPlan : RankCosts {
  RunInputs inputs;
  TrainerOptions options{};  ///< resolved
  ModelLayout layout{};
  StepPlan step{};  ///< valid
  /// Forward passes over the same state, if there is data to evaluate with; valid.
  std::optional<StepPlan> evaluation{};
  /// Forward passes for Session::forward, with TrainerOptions::forward; valid.
  std::optional<StepPlan> forward{};
  /// The step with copies of the state to host memory, for checkpoints; valid.
  StepPlan snapshot{};
  std::vector<RankCosts> stages{};  ///< by pipeline rank: of one of its ranks
  int largest_stage = 0;            ///< the pipeline rank that needs most memory
  bool cuda_graph = false;          ///< steps are recorded as a CUDA graph and replayed
  /// The table of options.gemm_table, where the run is on GPUs of this machine; null: no table.
  std::shared_ptr<const GemmTable> gemm_table{};
  /// Where the run begins, on this machine; null: at step 0.
  std::shared_ptr<const ResumePoint> resume{};
  /// The lock on the folder of CheckpointOptions, in rank 0's process.
  std::shared_ptr<const FolderLock> folder_lock{};
  /// Notes for the user on how it will run, a sentence each.
  std::vector<std::string> notes{};

  /// The step of the stage that needs most memory, for what one rank's shows.
  const Schedule& schedule() const { return step.ranks[static_cast<std::size_t>(largest_stage)]; }
  int pipeline_rank_of(int rank) const { return step.mesh().index(Axis::kPipeline, rank); }
};

/// resolved(), with the stages that the model's blocks decide; see with_blocks().
TrainerOptions resolved_for(const Model& model, const TrainerOptions& options);

/// Plans, validates and accounts. Touches no device and no data: of `source` only the shapes are
/// used. Throws Error{kConfig} on options that do not fit together.
TrainingPlan make_training_plan(const RunInputs& inputs, const TrainerOptions& options);

/// The programs of each pipeline rank, with the sources of its programs: those of the step, of the
/// evaluation and of forward passes, if the plan has them, in this order. `given` is that of
/// forward passes.
std::vector<std::vector<Program>> programs_of(const TrainingPlan& plan, const BatchSource& source,
                                              const BatchSource* evaluation,
                                              const BatchSource* given);

/// How many layers each of so many stages has, such that the slowest one is as fast as can be, by
/// the FLOPs of its layers' matrix products and the bytes that its kernels move; of equals, those
/// that have least parameters. Throws Error{kConfig} if there are more stages than layers.
StageLayers balanced_layers(const RunInputs& inputs, const TrainerOptions& resolved);

/// How the samples of an evaluation are divided.
SampleDivision evaluation_division(const TrainerOptions& options);
/// How often an evaluation runs its schedule.
std::int64_t evaluation_steps(const TrainerOptions& resolved);

/// The planner's part of resolved options.
PlanOptions plan_options(const TrainerOptions& resolved);
/// The layout that the optimizer's states need.
ModelLayout make_layout(const Model& model, const TrainerOptions& resolved);
/// The planner's options of a step that trains, with the sizes of the activations that wait on the
/// host.
PlanOptions plan_options(const TrainerOptions& resolved, const RunInputs& inputs,
                         const ModelLayout& layout);
/// Where a rank's file on disk is, if it has one.
DiskStoreOptions disk_options(const TrainerOptions& options);
/// The executor's options of one rank, but for the table of GEMMs.
ExecutorOptions executor_options(const TrainerOptions& options);

/// The GEMMs of one rank's step, and of its evaluation if there is one; see executor.h.
std::vector<GemmArgs> record_gemms(const TrainingPlan& plan);

/// Throws Error{kOutOfMemory} if a rank's predicted peak is above options.memory_limit_bytes, or
/// all ranks' together above `available_bytes` (see available_host_bytes). The text has the
/// prediction by category and the first change of options that would fit.
void require_memory(const TrainingPlan& plan, std::int64_t available_bytes);

/// A note for a plan that fits `available_bytes`, but with less room on its GPUs than
/// gpu_overhead() wants; else empty.
std::string tight_memory_note(const TrainingPlan& plan, std::int64_t available_bytes);

/// For a run that has run out of memory all the same: what the plan had predicted, whether
/// `available_bytes`, free once the run is over, would do, and the first change that would fit.
std::string memory_advice(const TrainingPlan& plan, std::int64_t available_bytes);

}  // namespace tessera
