#include "tessera/trainer/training_plan.h"

#include <map>
#include <set>
#include <utility>

#include "chosen_samples.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/error.h"
#include "tessera/core/offload_path.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/plan.h"
#include "tessera/sharding/validate.h"

namespace tessera {
namespace {

constexpr int kEvaluationMicroSteps = 1;

/// Why steps are not replayed as a CUDA graph, in a clause; empty if they are.
std::string why_no_graph(const TrainerOptions& options) {
  if (options.device != DeviceChoice::kCuda) return "only a GPU has graphs";
  if (!options.cuda_graph) return "`cuda_graph` is false";
  if (!options.trace.file.empty())
    return "`trace.file` times the actions of a step, and a replay has none";
  if (options.time_actions.value_or(false))
    return "`time_actions` times the actions of a step, and a replay has none";
  if (options.ranks == 1) return "";  // nothing to exchange
  if (options.group == GroupChoice::kThread) {
    return "the ranks of a thread group meet on the host in every collective";
  }
  if (options.check_collectives) {
    return "`check_collectives` compares on the host what every rank issues";
  }
  return "";
}

/// Whether steps overlap, and whether their actions are timed: not both.
void decide_overlap(TrainerOptions& options, bool cuda_graph) {
  const bool overlaps =
      options.overlap_steps.value_or(cuda_graph && !options.time_actions.value_or(false));
  if (!options.time_actions) options.time_actions = !cuda_graph && !overlaps;
  require(!(overlaps && *options.time_actions), ErrorCode::kConfig,
          "overlap_steps and time_actions: actions are timed one step after the other; leave one "
          "of them out");
  options.overlap_steps = overlaps;
}

/// A trace is of actions that are timed, one step after the other.
void decide_trace(TrainerOptions& options) {
  const TraceOptions& trace = options.trace;
  require(!trace.file.empty() || !trace.steps, ErrorCode::kConfig, "trace_steps is ",
          trace.steps ? to_string(*trace.steps) : "",
          ", but there is no trace to write: give `trace.file` a file, or leave out `trace.steps`");
  if (trace.file.empty()) return;
  require(options.time_actions.value_or(true), ErrorCode::kConfig,
          "time_actions is false, and a trace is of times: leave out one of `trace.file` and "
          "`time_actions` false");
  require(!options.overlap_steps.value_or(false), ErrorCode::kConfig,
          "overlap_steps and trace: a trace shows one step after the other; leave one of them out");
  options.time_actions = true;
}

/// Which passes of attention cuDNN is not asked to run, and why, a sentence for each reason.
std::vector<std::string> attention_notes(const std::set<CudaAttentionCall>& calls,
                                         const CudaKernelOptions& options) {
  if (options.attention != AttentionBackend::kAuto) return {};  // as the user has it
  std::map<std::string, bool> forward_too;                      // by reason
  for (const CudaAttentionCall& call : calls) {
    const std::string objection = cudnn_objection(call, options);
    if (!objection.empty()) forward_too[objection] |= !call.backward;
  }
  std::vector<std::string> notes;
  for (const auto& [objection, forward] : forward_too) {
    notes.push_back(concat(forward ? "attention runs" : "attention's backward pass runs",
                           " on our own kernels, not on cuDNN: ", objection));
  }
  return notes;
}

/// Forward passes over the state.
Schedule plan_forward(const TrainingPlan& of) {
  PlanOptions forward_only = plan_options(of.options);
  forward_only.purpose = Purpose::kEvaluate;
  forward_only.micro_steps = kEvaluationMicroSteps;
  Schedule schedule = plan(of.layout, forward_only);
  require_valid(schedule);
  return schedule;
}

}  // namespace

ModelLayout make_layout(const Model& model, const TrainerOptions& options) {
  return make_layout(model, options.wrap, flat_parts(mesh_of(options)),
                     flat_alignment(optimizer_tensors(options.optimizer)));
}

PlanOptions plan_options(const TrainerOptions& options) {
  return {.mesh = mesh_of(options),
          .placement = *options.placement,
          .reshard_after_forward = *options.reshard_after_forward,
          .reduction_order = options.reduction_order,
          .parameter_dtype = options.precision,
          .reduce_dtype = options.reduce_dtype,
          .micro_steps = options.accumulate,
          .accumulate_unsharded = options.accumulate_unsharded,
          .policy = options.policy,
          .overlap_optimizer = options.overlap_steps.value_or(false),
          .optimizer_tensors = optimizer_tensors(options.optimizer),
          .offload_optimizer = options.offload_optimizer.host,
          .offload_parameters = options.offload_parameters.host,
          .disk_optimizer = options.offload_optimizer.disk,
          .disk_parameters = options.offload_parameters.disk,
          .offload_gradients = options.offload_gradients.host};
}

PlanOptions plan_options(const TrainerOptions& options, const RunInputs& inputs,
                         const ModelLayout& layout) {
  PlanOptions result = plan_options(options);
  if (options.offload_activations == ActivationOffload::kHost) {
    result.offload_activations = layer_input_numels(inputs.model, layout, inputs.source,
                                                    options.micro_batch, options.precision);
  }
  return result;
}

ExecutorOptions executor_options(const TrainerOptions& options) {
  ExecutorOptions result;
  result.optimizer = options.optimizer;
  result.loss_scaling = loss_scaling(options.loss_scale);
  result.seed = options.seed;
  result.micro_batch = options.micro_batch;
  result.threads = options.threads_per_rank;
  result.device = options.device == DeviceChoice::kCuda ? DeviceKind::kCuda : DeviceKind::kCpu;
  result.cuda_kernels = {.attention = options.attention,
                         .deterministic = options.deterministic_attention};
  result.before_action = options.before_action;
  result.trace = options.time_actions.value_or(false);
  result.graph = why_no_graph(options).empty();
  result.steps_in_flight = options.overlap_steps.value_or(false) ? 2 : 1;
  return result;
}

DiskStoreOptions disk_options(const TrainerOptions& options) {
  // Calls at once: a lane that reads, one that writes, and one that copies a snapshot.
  return {.folder = options.offload_path, .callers = 3};
}

std::vector<GemmArgs> record_gemms(const TrainingPlan& plan) {
  std::vector<Program> programs{{&plan.schedule, &plan.inputs.source}};
  if (plan.evaluation) programs.push_back({&*plan.evaluation, plan.inputs.evaluation});
  return record_gemms(programs, plan.layout, plan.inputs.model, plan_options(plan.options).state(),
                      executor_options(plan.options));
}

SampleDivision evaluation_division(const TrainerOptions& options) {
  return divide_samples(mesh_of(options), kEvaluationMicroSteps, options.micro_batch);
}

std::int64_t evaluation_steps(const TrainerOptions& resolved) {
  return evaluation_division(resolved).steps_for(resolved.evaluation_samples);
}

TrainingPlan make_training_plan(const RunInputs& inputs, const TrainerOptions& options) {
  const auto& [model, source, evaluation] = inputs;
  check(model);
  TrainingPlan result{.inputs = inputs, .options = resolved(options)};
  check_groups(result.options.optimizer.groups, model);
  const std::string other_strategy = strategy_note(result.options);
  if (!other_strategy.empty()) result.notes.push_back(other_strategy);
  decide_trace(result.options);
  const std::string no_graph = why_no_graph(result.options);
  result.cuda_graph = no_graph.empty();
  decide_overlap(result.options, result.cuda_graph);
  if (result.options.device == DeviceChoice::kCuda && result.options.cuda_graph &&
      !result.cuda_graph) {
    result.notes.push_back("steps are not replayed as a CUDA graph: " + no_graph);
  }
  require(result.options.offload_gradients.disk == 0.0, ErrorCode::kConfig, kNoGradientsOnDisk);
  result.layout = make_layout(model, result.options);
  result.schedule = plan(result.layout, plan_options(result.options, inputs, result.layout));
  require_valid(result.schedule);
  const bool stochastic_rounding = result.options.optimizer.stochastic_rounding;
  result.snapshot = with_snapshot(result.schedule, stochastic_rounding);
  require_valid(result.snapshot);
  std::vector<Program> programs{{&result.schedule, &source}};
  const GivenSamples given(source);
  if (evaluation != nullptr) {
    require(result.options.evaluation_samples >= 1, ErrorCode::kConfig,
            "evaluation_samples: ", result.options.evaluation_samples,
            " is out of range; allowed: at least 1, where there is data to evaluate with");
    result.evaluation = plan_forward(result);
    programs.push_back({&*result.evaluation, evaluation});
    const Traffic once = account_traffic(*result.evaluation);
    for (std::int64_t i = evaluation_steps(result.options); i > 0; --i) {
      result.evaluation_traffic += once;
    }
  }
  if (result.options.forward) {
    result.forward = plan_forward(result);
    programs.push_back({.schedule = &*result.forward, .source = &given, .predicts = true});
  }
  const ExecutorOptions executor = executor_options(result.options);
  const Simulation simulation =
      simulate(programs, result.layout, model, plan_options(result.options).state(), executor);
  result.memory = simulation.memory;
  result.host_memory = simulation.host_memory;
  result.disk_bytes = account_disk(result.schedule);
  if (result.disk_bytes > 0 && !result.options.offload_path.empty()) {
    check_offload_path(result.options.offload_path,
                       result.disk_bytes * ranks_on_host(result.options));
  }
  result.pool_bytes = simulation.reserved_bytes;
  for (std::string& note : attention_notes(simulation.attention_calls, executor.cuda_kernels)) {
    result.notes.push_back(std::move(note));
  }
  result.traffic = account_traffic(result.schedule);
  if (!result.options.checkpoints.folder.empty()) {
    const StateOptions state = plan_options(result.options).state();
    result.checkpoint_bytes =
        describe_file(saved_parameters(result.layout, state, stochastic_rounding), result.layout,
                      state, 0)
            .bytes;
    result.snapshot_bytes = account_snapshot(result.snapshot);
  }
  return result;
}

}  // namespace tessera
