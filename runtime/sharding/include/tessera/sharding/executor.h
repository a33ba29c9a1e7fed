#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/core/device.h"
#include "tessera/core/memory.h"
#include "tessera/core/sim_device.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/class_counts.h"
#include "tessera/sharding/flight_recorder.h"
#include "tessera/sharding/fp8_options.h"
#include "tessera/sharding/groups.h"
#include "tessera/sharding/histories.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/loss_scaling.h"
#include "tessera/sharding/parameter_groups.h"
#include "tessera/sharding/schedule.h"
#include "tessera/sharding/timeline.h"
#include "tessera/sharding/training_state.h"

namespace tessera {

/// An optimizer by its row (optimizer.h); the learning rate comes with every step.
struct OptimizerOptions {
  std::string name = "adamw";
  /// By name, like {{"beta2", 0.99}}; those that are left out have the row's values.
  std::map<std::string, double> hyperparameters{};
  std::optional<float>
      weight_decay{};  ///< times ParameterSpec::weight_decay_scale; unset: the row's
  /// Parameters with a rate of their own; of several groups that have one, the first counts.
  std::vector<ParameterGroup> groups{};
  double clip_norm = 1.0;  ///< global gradient norm is scaled down to this; 0: never
  /// bf16 parameters are the fp32 masters rounded up or down at random, instead of to the nearest:
  /// drawn by step and element, the same for every placement and unit.
  bool stochastic_rounding = false;
};

/// The row's hyperparameters, all of them, in its order. Throws Error{kConfig} on names and values
/// that the optimizer does not take.
std::vector<double> hyperparameter_values(const OptimizerOptions& options);
/// The tensors that it keeps for each trainable parameter: see StateOptions::optimizer_tensors.
std::vector<OptimizerTensor> optimizer_tensors(const OptimizerOptions& options);
/// PlanOptions::scale_parameter with these hyperparameters.
bool scale_parameter(const OptimizerOptions& options);

struct ExecutorOptions {
  OptimizerOptions optimizer{};
  std::optional<LossScaling> loss_scaling{};  ///< unset: gradients are those of the loss itself
  std::uint64_t seed = 0;                     ///< of initialisation and dropout
  std::int64_t micro_batch = 1;               ///< samples per micro-step and rank
  int threads = 1;                            ///< of the compute lane and of the reduce lane
  /// Where the rank runs; for simulate() and predict_memory() the device that they stand for.
  DeviceKind device = DeviceKind::kCpu;
  CudaKernelOptions cuda_kernels{};  ///< of the lanes of a CUDA device
  Fp8Options fp8{};                  ///< with bf16 parameters
  /// Other kernels than the device's for passes through layers; see planning().
  const KernelTable* layer_kernels = nullptr;
  /// Seconds that the sim device charges for an action; unused elsewhere.
  std::function<double(const Schedule&, const Action&)> cost{};
  /// How fast the lanes of the sim device are that work at the same time; unused elsewhere.
  SimSpeeds speeds{};
  /// Lanes of the sim device take turns, as on a CPU those of a rank do that has no others; unused
  /// elsewhere.
  bool one_stream = false;
  /// Runs on a lane's thread before each of its tasks, e.g. a random delay in a test.
  std::function<void(Lane)> before_task{};
  /// Runs on a lane's thread before each action that does work, e.g. a fault in a test. `step`
  /// counts from 0.
  std::function<void(int rank, std::int64_t step, const Action& action)> before_action{};
  bool trace = false;  ///< keep when each action ran; see Executor::spans
  /// Records what the rank does, as it does it; must outlive the executor. Null: nothing does.
  FlightRecorder* recorder = nullptr;
  /// Capture the second step as a CUDA graph and replay it from then on: the same bits, without the
  /// host's part of the work. Needs a CUDA device and groups that can be captured (none, or NCCL).
  bool graph = false;
  /// 2: a step may begin before the one before it is finished; see Executor::begin_step.
  int steps_in_flight = 1;
};

struct StepResult {
  double loss = 0.0;           ///< mean over the tokens of all ranks and micro-steps
  double gradient_norm = 0.0;  ///< global, before clipping
  std::int64_t items = 0;      ///< tokens of all ranks and micro-steps
  double learning_rate = 0.0;  ///< of this step, or what it would have been of one that is skipped
  std::optional<LossScaleResult> loss_scale{};  ///< with ExecutorOptions::loss_scaling
  /// An evaluation's losses of classes, and those of them whose largest logit was the target's;
  /// see CrossEntropyArgs::hits. Zero where the last layer's loss is another one.
  std::int64_t classified = 0, correct = 0;
  std::vector<ClassCounts> classes{};  ///< of an evaluation, if the last layer has counted classes
};

/// The learning rate of the step after `taken` ones that were not skipped.
using RateOfStep = std::function<double(std::int64_t taken)>;

/// A parameter gathered from all ranks.
struct FullParameter {
  std::string name;
  Shape shape;
  std::vector<float> values;  ///< fp32 master weights
};

/// A schedule and the data that its passes read. Both must outlive the executor. Programs for the
/// same purpose and of the same source share the memory of its batches.
struct Program {
  const Schedule* schedule = nullptr;
  const BatchSource* source = nullptr;
  /// True of an evaluation's schedule whose passes take no losses; Executor::predict hands out what
  /// the last layer returns.
  bool predicts = false;
};

/// Carries out schedules on one rank, over one training state. No policy lives here: it issues the
/// actions in order, each on its lane, with its waits, by the handlers of their operations. Owns
/// the buffers of a step, which the schedules share: slots, gradients, scalars; all allocated once.
///
/// Driven by one host thread. If construction, a batch source or a task throws, every group is
/// aborted at once, so that the other ranks fail too, and the exception is rethrown; after that
/// only destruction is allowed.
class Executor {
 public:
  /// Everything passed by reference must outlive the executor. Initialises the state's parameters
  /// by the seed. Throws Error{kInvalidArgument} if a schedule was planned for another state.
  Executor(TrainingState& state, const Model& model, std::vector<Program> programs,
           RankGroups& groups, Memory& memory, ExecutorOptions options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// One optimizer step of `program` (an index) on the samples that belong to step `step` (counted
  /// from 0): rank by rank in order of ShardNesting::index, micro-steps outermost. Blocks until it
  /// is done.
  StepResult run_step(std::int64_t step, double learning_rate, std::size_t program = 0);

  /// The two halves of run_step: begin_step() issues the step's work and returns, finish_step()
  /// waits for the results of the oldest step that has begun. With ExecutorOptions::steps_in_flight
  /// of 2, the next step of the same program may begin in between: its first passes run beside this
  /// one's last updates, in the order that the schedule's waits give. Nothing but these two may be
  /// called before all steps that have begun are finished; then their work is over.
  void begin_step(std::int64_t step, double learning_rate, std::size_t program = 0);
  StepResult finish_step();
  /// Begins a step with a learning rate that is chosen by the number of steps not skipped.
  /// Whether one that is in flight is skipped is not known yet, so it is asked for each number that
  /// there may be.
  void begin_step(std::int64_t step, const RateOfStep& rate, std::size_t program = 0);

  /// The loss scaler after the last step, and its replacement, of a checkpoint, before the next.
  /// Without loss scaling it counts the steps that were skipped before, and no more. While no step
  /// is in flight. Not collective; all ranks must be given the same.
  LossScalerState loss_scaler() const;
  void set_loss_scaler(const LossScalerState& state);

  /// The histories of delayed scaling of the matrices whose layers this pipeline rank runs, and
  /// their replacement, of a checkpoint: of those that are named, the newest words that there is
  /// room for. The others stay. While no step is in flight; blocks. Not collective; all ranks must
  /// be given the same.
  std::vector<Fp8History> fp8_histories();
  void set_fp8_histories(const std::vector<Fp8History>& histories);

  /// The mean loss of the first `samples` samples of an evaluation's source, all ranks together.
  /// The losses are added exactly: the result does not depend on how many ranks share the work. The
  /// state stays as it is. Collective; blocks. `after_batch` is told each run of the schedule,
  /// counted from 0, when it is over.
  StepResult evaluate(std::size_t program, std::int64_t samples,
                      const std::function<void(std::int64_t batch)>& after_batch = {});

  /// Takes what the last layer returns, in fp32, for the samples first_sample and on.
  using OnPrediction = std::function<void(std::int64_t first_sample, const Shape& shape,
                                          std::span<const float> values)>;
  /// Runs a program that predicts once, on the samples that belong to `step` (counted from 0), and
  /// hands out what this rank has predicted: once for each micro-step. Collective; blocks.
  void predict(std::size_t program, std::int64_t step, const OnPrediction& receive);

  /// Copies a program's snapshot (with_snapshot) as the state is now, without a step; blocks. A
  /// step of the program copies it, too: as the state is before that step. Not collective.
  /// `step`: the one that would be next, for records.
  void take_snapshot(std::size_t program, std::int64_t step);
  /// Takes the host memory of a program's snapshot now, not when it is first needed. Not
  /// collective.
  void prepare_snapshot(std::size_t program);
  /// In host memory, what the last snapshot has of a state tensor, by its name: (numel) of this
  /// rank's part. To be read once the step is finished, until the next snapshot.
  TensorView snapshot(std::size_t program, const std::string& state_tensor) const;

  /// Runs `work` on the training state, given a stream of the device; blocks. Not collective.
  void run_apart(const std::function<void(Stream& stream)>& work);

  /// See TrainingState::set_parameters. Not collective: each rank takes its own part, and all must
  /// be given the same values.
  void set_parameters(const ParameterValues& values);

  /// Hands the master weights of every parameter to `receive` in order of declaration, on every
  /// rank that gives one, unit by unit: no more than one unit is unsharded at a time. Collective.
  void gather_parameters(const std::function<void(FullParameter parameter)>& receive);
  /// All of them at once.
  std::vector<FullParameter> gather_parameters();

  /// Bytes that this rank has sent and copied: RankGroups::traffic() and the schedules' copies.
  Traffic traffic() const;

  /// When the actions of the last step ran, if ExecutorOptions::trace; of several, if they were in
  /// flight together.
  const std::vector<ActionSpan>& spans() const;

  /// Notes for the user on how steps run, a sentence each, from construction on. On a GPU: why
  /// attention is not cuDNN's, unless cudnn_objection() says so to whoever plans a run; and why
  /// NCCL's collectives are not in place.
  std::vector<std::string> notes();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A rank's memory while an action runs, and when it is over.
struct ActionMemory {
  MemoryPeak highest;
  MemoryUse after;
};
/// Memory along a step, in the order in which actions are issued.
struct StepMemory {
  MemoryUse before;                   ///< of the first action
  std::vector<ActionMemory> actions;  ///< by index
};

/// One rank's step, or all that are in flight together, simulated without a device.
struct Simulation {
  /// account_memory() for what stays, the simulated run for activations, workspace and data: equals
  /// Memory::peak() of a real run, to the byte.
  MemoryPeak memory;
  MemoryPeak host_memory;  ///< the same of Memory::peak(Tier::kHost)
  /// Bytes that a GPU's memory pool takes for that, CudaDevice::reserved_bytes() of a real run.
  /// With what parameters take that are gathered between steps.
  std::int64_t reserved_bytes = 0;
  /// The passes of attention on a GPU, each once.
  std::set<CudaAttentionCall> attention_calls;
  Traffic traffic;                ///< of one step; equals Executor::traffic() of a real one
  std::vector<ActionSpan> spans;  ///< in the virtual seconds that ExecutorOptions::cost charges
  /// By program: of its last step. The highest of all of them is `memory`, unless that is reached
  /// before the first step.
  std::vector<StepMemory> step_memory;
};

/// Runs the executor for one step of each program (of the first, as many as may be in flight) on
/// the sim device: allocations are counted and not made, collectives move nothing, every lane has a
/// virtual clock. Sources are asked for shapes only. Traffic and spans are the first program's.
Simulation simulate(std::span<const Program> programs, const ModelLayout& layout,
                    const Model& model, const StateOptions& state, const ExecutorOptions& options);
/// One rank of each pipeline rank, side by side on one clock. `ranks` and `options`: by pipeline
/// rank; each has programs of its own schedules, in the same order. `state` is that of any of them.
std::vector<Simulation> simulate(std::span<const std::vector<Program>> ranks,
                                 const ModelLayout& layout, const Model& model,
                                 const StateOptions& state,
                                 std::span<const ExecutorOptions> options);
/// Simulates one schedule that trains.
Simulation simulate(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                    const BatchSource& source, const ExecutorOptions& options);

/// The GEMMs that one rank asks for in one step of each program, in their order, as simulate()
/// finds them: of their addresses only the alignment counts.
std::vector<GemmArgs> record_gemms(std::span<const Program> programs, const ModelLayout& layout,
                                   const Model& model, const StateOptions& state,
                                   const ExecutorOptions& options);

/// The memory of simulate(): the most that one rank uses.
MemoryPeak predict_memory(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                          const BatchSource& source, const ExecutorOptions& options);

/// The state that a schedule's persistent buffers describe.
StateOptions state_options(const Schedule& schedule);

}  // namespace tessera
