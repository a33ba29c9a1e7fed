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
#include "tessera/sharding/plan.h"
#include "tessera/sharding/schedule.h"
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

/// A run before it runs: the actions of every rank, and their costs.
struct TrainingPlan {
  RunInputs inputs;
  TrainerOptions options{};  ///< resolved
  ModelLayout layout{};
  Schedule schedule{};  ///< valid
  /// Forward passes over the same state, if there is data to evaluate with; valid.
  std::optional<Schedule> evaluation{};
  /// Forward passes for Session::forward, with TrainerOptions::forward; valid.
  std::optional<Schedule> forward{};
  /// The step with copies of the state to host memory, for checkpoints; valid.
  Schedule snapshot{};
  MemoryPeak memory{};           ///< predicted peak of one rank, forward passes included
  MemoryPeak host_memory{};      ///< of its offloaded state in the host's memory
  std::int64_t disk_bytes = 0;   ///< of its file on disk; 0: it has none
  std::int64_t pool_bytes = 0;   ///< of a GPU: what its memory pool takes for that
  Traffic traffic{};             ///< predicted, of one rank and step
  Traffic evaluation_traffic{};  ///< of one rank and one evaluation
  bool cuda_graph = false;       ///< steps are recorded as a CUDA graph and replayed
  /// The table of options.gemm_table, where the run is on GPUs of this machine; null: no table.
  std::shared_ptr<const GemmTable> gemm_table{};
  /// Bytes of one rank's part of a checkpoint, and of host memory for its snapshot; 0: none is
  /// written.
  std::int64_t checkpoint_bytes = 0;
  std::int64_t snapshot_bytes = 0;
  /// Where the run begins, on this machine; null: at step 0.
  std::shared_ptr<const ResumePoint> resume{};
  /// The lock on the folder of CheckpointOptions, in rank 0's process.
  std::shared_ptr<const FolderLock> folder_lock{};
  /// Notes for the user on how it will run, a sentence each.
  std::vector<std::string> notes{};
};

/// Plans, validates and accounts. Touches no device and no data: of `source` only the shapes are
/// used. Throws Error{kConfig} on options that do not fit together.
TrainingPlan make_training_plan(const RunInputs& inputs, const TrainerOptions& options);

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
