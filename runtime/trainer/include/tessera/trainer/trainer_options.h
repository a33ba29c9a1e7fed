#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/collectives/world.h"
#include "tessera/core/core_binding.h"
#include "tessera/core/dtype.h"
#include "tessera/core/host_work.h"
#include "tessera/core/named_text.h"
#include "tessera/core/storage.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/lab/dump_requests.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/fp8_options.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/learning_rate.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/sample_division.h"
#include "tessera/sharding/strategies.h"
#include "tessera/sharding/training_state.h"
#include "tessera/trainer/loss_scale_options.h"

namespace tessera {

enum class DeviceChoice : std::uint8_t {
  kAuto,  ///< a GPU if one can be used, else the CPU
  kCpu,
  kCuda,
};

/// The process group of the ranks of one process.
enum class GroupChoice : std::uint8_t {
  kAuto,    ///< nccl if every rank has a GPU of its own, else thread
  kThread,  ///< CPU ranks, or ranks that share GPUs
  kNccl,
};

/// The most ranks of a run.
inline constexpr int kMaxRanks = 1 << 20;

/// The most micro-steps of a step.
inline constexpr int kMaxAccumulate = 65536;

/// The consequence of a checkpoint that cannot be written.
enum class SaveFailures : std::uint8_t {
  kFail,      ///< the run ends at its next step
  kTolerate,  ///< it goes on, and says so
};

/// Checkpoints: where a run writes them, and from which one it goes on; see checkpoint_folder.h.
struct CheckpointOptions {
  std::string folder{};          ///< "": none are written
  std::int64_t every = 0;        ///< steps between them; 0: one after the last step
  std::int64_t total_limit = 0;  ///< the newest so many are kept, and the best; 0: all
  /// A checkpoint after each evaluation whose loss is the lowest so far; `best` names it.
  bool save_best = false;
  bool asynchronous = true;  ///< steps go on while the files are written
  SaveFailures failures = SaveFailures::kFail;
  /// A checkpoint, a folder of them, "latest" (the newest of `folder`), "auto" (that, if there is
  /// one) or "best" (the best of `folder`); "": the run begins at step 0.
  std::string resume{};
  // Differences from the run that is resumed that are allowed. Without these, a difference is an
  // error.
  bool allow_other_data = false;       ///< its samples go on at the same position
  bool allow_other_optimizer = false;  ///< states that the checkpoint has not begin at zero
  bool allow_other_model = false;      ///< as long as parameters have the same names and shapes
  /// Files that each checkpoint has besides, by name, with their bytes: what an export of it needs.
  std::vector<NamedText> companions{};
  /// Makes the calls that write files, e.g. to fail in a test; must outlive the run. Null: disk().
  Storage* storage = nullptr;
};

/// Steps of a run, counted from 1, both included.
struct StepRange {
  std::int64_t first = 1, last = 1;
  bool operator==(const StepRange&) const = default;
};

/// A timeline of some steps, for Perfetto; see trace.h of the lab.
struct TraceOptions {
  std::string file{};  ///< "": none is made. Written by rank 0's process
  /// Unset: the third to the fifth step of this run, as far as it has them.
  std::optional<StepRange> steps{};
  bool of_evaluation = false;  ///< of an evaluation's batches, not of steps
};

/// How much of the training state, or of the gradients, lies in the host's memory or on disk: one
/// of them.
struct Offload {
  double host = 0.0;  ///< share of units, the last ones; see StateOptions
  double disk = 0.0;  ///< the same; not of gradients
  bool operator==(const Offload&) const = default;
};

/// Where the inputs of recomputed layers wait for backward.
enum class ActivationOffload : std::uint8_t {
  kNone,  ///< on the device
  kHost,  ///< in the host's memory
};

/// How many layers each stage has; empty: not decided.
struct StageLayers {
  std::vector<int> counts{};
  bool operator==(const StageLayers&) const = default;

  /// The first layer of each stage.
  std::vector<int> first_layers() const;
};

/// In which order stages pass micro-steps: one that has a name, or passes that a file lists.
struct PipelineSchedule {
  /// Unset: 1f1b, or with several stages on a rank interleaved.
  std::optional<PipelineOrder> order{};
  std::string file{};                            ///< of kListed: its path
  std::vector<std::vector<StagePass>> listed{};  ///< what it has; see parse_pipeline_csv()
};

/// How layers are divided among ranks that pass micro-steps on to one another.
struct PipelineSplit {
  int ranks = 1;  ///< pipeline ranks; each is ranks / pipeline.ranks of a run's ranks
  /// Stages on each pipeline rank; 0: as the schedule usually has, see usual_virtual_stages().
  int virtual_stages = 0;
  PipelineSchedule schedule{};
  int prefetch = 1;  ///< see PipelineOptions
  /// Layers of each stage, the embedding and the head among them; empty: such that the slowest
  /// stage is as fast as it can be, see balanced_layers(). A plan has them.
  StageLayers layers{};
  // Megatron-LM counts blocks instead: the layers between the embedding and the head, which belong
  // to the first and to the last stage. with_blocks() makes `layers` of them.
  std::optional<int> stage_blocks{};  ///< of each stage: how many stages a pipeline rank has
  std::optional<int> first_blocks{};  ///< of the first pipeline rank; others have equally many
  std::optional<int> last_blocks{};   ///< of the last pipeline rank
  /// Gradients of tied parameters are added up apart for each layer and then added once, as a
  /// pipeline must, which changes bits; see make_layout(). Unset: with several stages.
  std::optional<bool> tied_apart{};

  /// Stages of all pipeline ranks, of resolved options.
  int stages() const;
  /// The pipeline rank of each stage, of resolved options.
  std::vector<int> ranks_of_stages() const;
  /// Whether a model's blocks decide `layers`, and have not done so yet.
  bool waits_for_blocks() const {
    return (stage_blocks || first_blocks || last_blocks) && layers.counts.empty();
  }
};
/// With its schedule and the number of stages filled in. Throws Error{kConfig} if the passes of a
/// file are of other ranks.
PipelineSplit resolved_pipeline(PipelineSplit pipeline);
/// With `layers` and the number of stages that stage_blocks, first_blocks and last_blocks give a
/// model of so many layers; unchanged where none of them is given. Throws Error{kConfig} if blocks
/// cannot be divided so.
PipelineSplit with_blocks(PipelineSplit pipeline, int layers);

/// All of a training run but the model and the data. The defaults are those of `tessera train`.
struct TrainerOptions {
  // How the training state is spread over ranks.
  std::string strategy = "full_shard";  ///< a preset or an alias; see strategies()
  /// Another strategy for what is trained: then `strategy` is that of frozen parameters. "": the
  /// same for both.
  std::string trainable_strategy{};
  std::optional<Placement> placement{};         ///< instead of the strategies' own
  std::optional<bool> reshard_after_forward{};  ///< instead of the strategy's own
  int ranks = 1;
  PipelineSplit pipeline{};
  int replicas = 0;        ///< of each stage; 0: as the strategy has it; see default_replicas
  int ranks_per_node = 0;  ///< 0: as the launcher has it, else all on one; for that default alone
  ReductionOrder reduction_order = PlanOptions{}.reduction_order;
  WrapPolicy wrap{};
  Offload offload_optimizer{};   ///< optimizer state and master weights; updates run there, too
  Offload offload_parameters{};  ///< parameters, and with them what offload_optimizer does
  Offload offload_gradients{};   ///< reduced gradients, between micro-steps and until the update
  std::string offload_path{};    ///< a folder on the disk that state is offloaded to
  ActivationOffload offload_activations = ActivationOffload::kNone;  ///< with Recompute::kFull

  // The step.
  std::int64_t steps = 100;
  std::int64_t micro_batch = 4;  ///< samples per micro-step and rank
  int accumulate = 1;            ///< micro-steps per step
  bool accumulate_unsharded = PlanOptions{}.accumulate_unsharded;
  StepPolicy policy{};                              ///< prefetch depths and recomputation
  DType precision = PlanOptions{}.parameter_dtype;  ///< of parameters and activations
  Fp8Options fp8{};  ///< with `precision` bf16, where products are in fp8; the setting is "fp8"
  DType reduce_dtype =
      PlanOptions{}.reduce_dtype;  ///< of gradients on their way: fp32, or `precision`
  LossScaleOptions loss_scale{};
  OptimizerOptions optimizer{};
  LearningRateSchedule learning_rate{};  ///< total_steps, left at 1, becomes `steps`
  std::uint64_t seed = 0;                ///< of initialisation and dropout
  /// Fills a rank's parameters with those to start from at step 0, instead of those of the seed:
  /// PretrainedGpt::load, TrainingState::set_parameters. Called by each rank, several at once; all
  /// ranks of all processes must be given the same values.
  std::function<void(TrainingState& state, Stream& stream)> initial_parameters{};

  // Evaluation, if there is data for it.
  std::int64_t evaluate_every = 0;      ///< steps; 0: after the last one only
  std::int64_t evaluation_samples = 0;  ///< the first so many of the data
  /// The run stops after so many evaluations in a row that are no better; 0: it does not.
  std::int64_t patience = 0;
  /// By more than this a loss must be lower than the best before, for the count of `patience` to
  /// begin anew. Any lower loss is the new best.
  double min_improvement = 0.0;

  CheckpointOptions checkpoints{};
  std::int64_t stop_after = 0;  ///< steps of this run, after which it stops; 0: none

  // How it runs here.
  /// The processes that share the run; it has `ranks` ranks. Null: all ranks are of this process.
  std::shared_ptr<World> world{};
  DeviceChoice device = DeviceChoice::kAuto;  ///< decided by Trainer; a plan alone is of CPUs then
  GroupChoice group = GroupChoice::kAuto;
  /// NCCL adds in rank order, for the same bits as every other group, and more slowly.
  bool deterministic_collectives = false;
  AttentionBackend attention = AttentionBackend::kAuto;  ///< on a GPU
  /// cuDNN's attention gives the same bits every time, for more scratch.
  bool deterministic_attention = true;
  /// On a GPU: CudaKernelOptions::fp8_fast_accumulation.
  bool fp8_fast_accumulation = false;
  /// A file that says how to run GEMMs on this GPU (see GemmTable); "": as cuBLASLt's heuristic
  /// says.
  std::string gemm_table{};
  /// On a GPU, CudaKernelOptions::optimizer_blocks of steps that overlap.
  int optimizer_blocks = 0;
  bool cuda_graph = true;               ///< replay steps as a CUDA graph where that is possible
  int threads_per_rank = 0;             ///< 0: usable_cores() or bind_core_list, by ranks_on_host()
  BindPolicy bind = BindPolicy::kAuto;  ///< to what ranks and their threads are bound
  std::string
      bind_core_list{};  ///< ranks divide these CPUs only, "0-3,8-11"; "": all that may be used
  /// Which cores each rank of this machine has, by its place among them; decided by Trainer. Null:
  /// ranks are not bound.
  std::shared_ptr<const CoreBinding> binding{};
  std::int64_t memory_limit_bytes = 0;        ///< per rank; 0: what the machine has
  std::chrono::milliseconds timeout{120000};  ///< how long a rank waits for its peers
  bool check_collectives = false;  ///< compare every collective over ranks before it runs
  /// Counts what takes long before the first step and after the last, and may end the former. Null:
  /// nobody looks.
  std::shared_ptr<HostWork> host_work{};
  /// Time actions, to measure exposed communication. Unset: unless steps are replayed as a CUDA
  /// graph, which has no actions to time.
  std::optional<bool> time_actions{};
  TraceOptions trace{};  ///< with a file, actions are timed
  /// Begin each step before the last one's results are read, and run the optimizer beside its
  /// forward pass. A run that is stopped by its callback then ends one step later. Unset: where
  /// steps are replayed as a CUDA graph.
  std::optional<bool> overlap_steps{};
  /// Where a failing run writes what its ranks were doing, a file per process (see flight_dump.h);
  /// "": nowhere.
  std::string dump_folder{};
  std::shared_ptr<DumpRequests> dump_requests{};  ///< to ask for the same while it runs
  bool allow_non_finite = false;                  ///< go on when the loss is nan or infinite
  bool forward = false;                           ///< plan Session::forward, too
  bool gather_parameters = false;                 ///< return the trained parameters in the summary
  bool hash_parameters = true;  ///< and their hash, for which they are gathered, too
  /// See ExecutorOptions::before_action; of all ranks of this process.
  std::function<void(int rank, std::int64_t step, const Action& action)> before_action{};
};

/// Where checkpoints are written.
inline Storage& storage_of(const CheckpointOptions& options) {
  return options.storage != nullptr ? *options.storage : disk();
}

/// The value of the setting `precision`: "fp8", or the dtype.
std::string precision_name(const TrainerOptions& options);
std::string_view to_string(DeviceChoice choice);
std::string_view to_string(GroupChoice choice);
std::string_view to_string(SaveFailures failures);
std::string_view to_string(AttentionBackend backend);
DeviceChoice parse_device(std::string_view name);  ///< Throws Error{kConfig}.

/// usable_cores() divided by `ranks`, at least 1.
int default_threads_per_rank(int ranks);

/// How many of the run's ranks are on this machine.
int ranks_on_host(const TrainerOptions& options);

/// `options` with every default that depends on another option replaced by its value. Stages that
/// a model's blocks decide are left to make_training_plan().
/// Throws Error{kConfig} that names the option, its value and what is allowed.
TrainerOptions resolved(TrainerOptions options);

/// How the run's ranks are arranged; where `replicas` is 0, as if it were 1. Throws Error{kConfig}
/// if replicas do not divide ranks.
Mesh mesh_of(const TrainerOptions& options);

/// How the run's samples are divided; replicas do not matter.
SampleDivision sample_division(const TrainerOptions& options);

/// The placement of `strategy` and `trainable_strategy`.
Placement placement_of(const TrainerOptions& options);

/// strategy_note() of resolved options; "" where the user gives a placement of their own.
std::string strategy_note(const TrainerOptions& resolved);

/// `options` with another strategy, which decides anew whatever a strategy decides (placement,
/// resharding, replicas). In resolved options the former strategy has decided that.
/// Throws Error{kConfig} if no strategy has that name.
TrainerOptions with_strategy(TrainerOptions options, std::string_view name);

/// "3-5", "7".
std::string to_string(const StepRange& steps);
StepRange parse_step_range(std::string_view text);  ///< Throws Error{kConfig}.

/// "4,5,2".
std::string to_string(const StageLayers& layers);
StageLayers parse_stage_layers(std::string_view text);  ///< Throws Error{kConfig}.
std::string to_string(const PipelineSchedule& schedule);
/// An order by its name, or a file: a path that ends in ".csv". "": none. Throws Error{kConfig},
/// and Error{kNotFound} or Error{kIo} if the file cannot be read.
PipelineSchedule parse_pipeline_schedule(std::string_view text);

/// "none", "host".
std::string_view to_string(ActivationOffload offload);

/// "none", "host", "host:0.5".
std::string to_string(const Offload& offload);
Offload parse_offload(std::string_view text);  ///< Throws Error{kConfig}.
/// Why they cannot be on disk.
inline constexpr std::string_view kNoGradientsOnDisk =
    "gradients live for less than a step: on a disk, 4 bytes per element would be written and read "
    "in each micro-step; choose none, host or host:SHARE";

/// "layer", "none", "size:1000000".
std::string to_string(const WrapPolicy& policy);
WrapPolicy parse_wrap_policy(std::string_view text);

}  // namespace tessera
