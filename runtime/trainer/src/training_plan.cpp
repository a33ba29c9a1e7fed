#include "tessera/trainer/training_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "chosen_samples.h"
#include "fp8_settings.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/error.h"
#include "tessera/core/offload_path.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/validate.h"
#include "tessera/trainer/byte_size.h"

namespace tessera {
namespace {

/// Stages work at the same time on as many micro-steps, if there are samples for these.
int evaluation_micro_steps(const TrainerOptions& options) {
  const int ranks = options.pipeline.ranks;
  if (options.evaluation_samples < 1) return ranks;
  const std::int64_t of_micro_step = options.micro_batch * (options.ranks / ranks);
  const std::int64_t needed = (options.evaluation_samples + of_micro_step - 1) / of_micro_step;
  return static_cast<int>(std::min<std::int64_t>(ranks, needed));
}

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
StepPlan plan_forward(const TrainingPlan& of) {
  PlanOptions forward_only = plan_options(of.options, of.inputs, of.layout);
  forward_only.purpose = Purpose::kEvaluate;
  forward_only.micro_steps = evaluation_micro_steps(of.options);
  forward_only.offload_activations.clear();
  StepPlan step = plan_step(of.layout, forward_only);
  require_valid(step);
  return step;
}

/// Whether the model has the layers that stages are to have.
void check_stages(const TrainerOptions& options, const Model& model) {
  const std::vector<int>& counts = options.pipeline.layers.counts;
  const auto layers = static_cast<int>(model.layers.size());
  if (counts.empty()) return;
  const int sum = std::accumulate(counts.begin(), counts.end(), 0);
  require(sum == layers, ErrorCode::kConfig, "pipeline_split is ",
          to_string(options.pipeline.layers), ", ", sum, " layers, but the model has ", layers,
          ", the embedding and the head among them");
}

/// The price of a strategy that reduces gradients at every micro-step, of which a pipeline wants
/// many.
std::string price_note(const TrainingPlan& plan, const RunInputs& inputs) {
  const TrainerOptions& options = plan.options;
  const Schedule& schedule = plan.step.ranks.front();
  const bool reduces_each = options.pipeline.stages() > 1 && options.accumulate > 1 &&
                            !options.accumulate_unsharded &&
                            schedule.mesh.size(schedule.placement.gradient) > 1;
  if (!reduces_each) return "";
  PlanOptions once = plan_options(options, inputs, plan.layout);
  once.accumulate_unsharded = true;
  const auto sent = [](const StepPlan& step) {
    std::int64_t most = 0;
    for (const Schedule& of_rank : step.ranks) {
      const Traffic traffic = account_traffic(of_rank);
      most = std::max(most, std::accumulate(traffic.sent_bytes.begin(), traffic.sent_bytes.end(),
                                            std::int64_t{0}));
    }
    return format_bytes(most);
  };
  return concat(options.strategy, " reduces gradients in each of ", options.accumulate,
                " micro-steps: a rank sends up to ", sent(plan.step),
                " per step; with `accumulate_unsharded` they are reduced once, for ",
                sent(plan_step(plan.layout, once)), " and more memory");
}

/// Adds what the ranks of each pipeline rank need.
void account(TrainingPlan& plan, const BatchSource& given) {
  const auto& [model, source, evaluation] = plan.inputs;
  const StateOptions state = plan_options(plan.options).state();
  const ExecutorOptions executor = executor_options(plan.options);
  const std::vector<std::vector<Program>> programs = programs_of(plan, source, evaluation, &given);
  const std::vector<ExecutorOptions> executors(programs.size(), executor);
  const std::vector<Simulation> simulated =
      simulate(programs, plan.layout, model, state, executors);
  std::set<CudaAttentionCall> attention_calls;
  for (std::size_t p = 0; p < simulated.size(); ++p) {
    const Simulation& simulation = simulated[p];
    RankCosts costs{.memory = simulation.memory,
                    .host_memory = simulation.host_memory,
                    .disk_bytes = account_disk(plan.step.ranks[p]),
                    .pool_bytes = simulation.reserved_bytes,
                    .traffic = account_traffic(plan.step.ranks[p])};
    if (plan.evaluation) {
      const Traffic once = account_traffic(plan.evaluation->ranks[p]);
      for (std::int64_t i = evaluation_steps(plan.options); i > 0; --i) {
        costs.evaluation_traffic += once;
      }
    }
    if (!plan.options.checkpoints.folder.empty()) {
      const int rank = static_cast<int>(p) * (plan.options.ranks / plan.options.pipeline.ranks);
      const bool stochastic_rounding = plan.options.optimizer.stochastic_rounding;
      costs.checkpoint_bytes =
          describe_file(saved_parameters(plan.layout, state, stochastic_rounding), plan.layout,
                        state, rank)
              .bytes;
      costs.snapshot_bytes = account_snapshot(plan.snapshot.ranks[p]);
    }
    attention_calls.insert(simulation.attention_calls.begin(), simulation.attention_calls.end());
    plan.stages.push_back(costs);
  }
  const auto largest = std::ranges::max_element(
      plan.stages, {}, [](const RankCosts& costs) { return costs.memory.total; });
  plan.largest_stage = static_cast<int>(largest - plan.stages.begin());
  static_cast<RankCosts&>(plan) = *largest;
  for (std::string& note : attention_notes(attention_calls, executor.cuda_kernels)) {
    plan.notes.push_back(std::move(note));
  }
}

}  // namespace

/// Whether updates depend on all gradients. Without stages the norm is there when they begin.
static bool needs_norm(const TrainerOptions& options) {
  return options.pipeline.stages() == 1 || options.optimizer.clip_norm > 0.0 ||
         is_factored(optimizer_tensors(options.optimizer)) ||
         loss_scaling(options.loss_scale).has_value();
}

ModelLayout make_layout(const Model& model, const TrainerOptions& options) {
  const int parts = flat_parts(mesh_of(options));
  const std::int64_t alignment = flat_alignment(optimizer_tensors(options.optimizer));
  const bool tied_apart = options.pipeline.tied_apart.value_or(options.pipeline.stages() > 1);
  return with_fp8_apart(make_layout(model, options.wrap, parts, alignment, tied_apart), options.fp8,
                        parts, alignment);
}

/// Without the sizes of inputs.
static PipelineOptions pipeline_options(const TrainerOptions& options) {
  const PipelineSplit& split = options.pipeline;
  PipelineOptions result{.first_layers = split.layers.first_layers(), .prefetch = split.prefetch};
  if (split.stages() == 1) return result;
  result.order = *split.schedule.order;
  result.listed = split.schedule.listed;
  result.stage_ranks = result.listed.empty()
                           ? stage_ranks(result.order, split.ranks, split.stages())
                           : stage_ranks(result.listed);
  return result;
}

PlanOptions plan_options(const TrainerOptions& options) {
  return {.mesh = mesh_of(options),
          .placement = *options.placement,
          .pipeline = pipeline_options(options),
          .reshard_after_forward = *options.reshard_after_forward,
          .reduction_order = options.reduction_order,
          .parameter_dtype = options.precision,
          .reduce_dtype = options.reduce_dtype,
          .micro_steps = options.accumulate,
          .accumulate_unsharded = options.accumulate_unsharded,
          .policy = options.policy,
          .overlap_optimizer = options.overlap_steps.value_or(false),
          .gather_codes = options.fp8.enabled && options.fp8.gather_format == GatherFormat::kE4M3,
          .scale_units = options.fp8.scale_units,
          .fp8_history = options.fp8.is_delayed() ? options.fp8.history : 0,
          .updates_wait_for_norm = needs_norm(options),
          .optimizer_tensors = optimizer_tensors(options.optimizer),
          .scale_parameter = scale_parameter(options.optimizer),
          .offload_optimizer = options.offload_optimizer.host,
          .offload_parameters = options.offload_parameters.host,
          .disk_optimizer = options.offload_optimizer.disk,
          .disk_parameters = options.offload_parameters.disk,
          .offload_gradients = options.offload_gradients.host};
}

PlanOptions plan_options(const TrainerOptions& options, const RunInputs& inputs,
                         const ModelLayout& layout) {
  PlanOptions result = plan_options(options);
  const bool offloads = options.offload_activations == ActivationOffload::kHost;
  if (!offloads && options.pipeline.stages() == 1) return result;
  const std::vector<std::int64_t> numels = layer_input_numels(
      inputs.model, layout, inputs.source, options.micro_batch, options.precision);
  if (offloads) result.offload_activations = numels;
  result.pipeline.input_numels = stage_input_numels(numels, result.pipeline.first_layers);
  return result;
}

ExecutorOptions executor_options(const TrainerOptions& options) {
  ExecutorOptions result;
  result.optimizer = options.optimizer;
  result.loss_scaling = loss_scaling(options.loss_scale);
  result.seed = options.seed;
  result.micro_batch = options.micro_batch;
  result.threads = options.threads_per_rank;
  result.fp8 = options.fp8;
  result.device = options.device == DeviceChoice::kCuda ? DeviceKind::kCuda : DeviceKind::kCpu;
  result.cuda_kernels = {.attention = options.attention,
                         .deterministic = options.deterministic_attention,
                         .fp8_fast_accumulation = options.fp8_fast_accumulation};
  if (options.fp8.enabled && result.device == DeviceKind::kCuda) {
    result.cuda_kernels.fp8_gemms = gpus_multiply_fp8();
  }
  result.before_action = options.before_action;
  result.trace = options.time_actions.value_or(false);
  result.graph = why_no_graph(options).empty();
  result.steps_in_flight = options.overlap_steps.value_or(false) ? 2 : 1;
  if (result.steps_in_flight > 1) result.cuda_kernels.optimizer_blocks = options.optimizer_blocks;
  return result;
}

DiskStoreOptions disk_options(const TrainerOptions& options) {
  // Calls at once: a lane that reads, one that writes, and one that copies a snapshot.
  return {.folder = options.offload_path, .callers = 3};
}

std::vector<std::vector<Program>> programs_of(const TrainingPlan& plan, const BatchSource& source,
                                              const BatchSource* evaluation,
                                              const BatchSource* given) {
  std::vector<std::vector<Program>> programs;
  for (std::size_t p = 0; p < plan.step.ranks.size(); ++p) {
    std::vector<Program>& own = programs.emplace_back();
    own.push_back({&plan.step.ranks[p], &source});
    if (plan.evaluation && evaluation != nullptr) {
      own.push_back({&plan.evaluation->ranks[p], evaluation});
    }
    if (plan.forward && given != nullptr) {
      own.push_back({.schedule = &plan.forward->ranks[p], .source = given, .predicts = true});
    }
  }
  return programs;
}

std::vector<GemmArgs> record_gemms(const TrainingPlan& plan) {
  StateOptions state = plan_options(plan.options).state();
  std::vector<GemmArgs> all;
  const auto& [model, source, evaluation] = plan.inputs;
  for (const std::vector<Program>& programs : programs_of(plan, source, evaluation, nullptr)) {
    const std::vector<GemmArgs> own =
        record_gemms(programs, plan.layout, model, state, executor_options(plan.options));
    all.insert(all.end(), own.begin(), own.end());
    ++state.pipeline.rank;
  }
  return all;
}

SampleDivision evaluation_division(const TrainerOptions& options) {
  return divide_samples(mesh_of(options), evaluation_micro_steps(options), options.micro_batch);
}

std::int64_t evaluation_steps(const TrainerOptions& resolved) {
  return evaluation_division(resolved).steps_for(resolved.evaluation_samples);
}

TrainerOptions resolved_for(const Model& model, const TrainerOptions& options) {
  TrainerOptions full = resolved(options);
  PipelineSplit& pipeline = full.pipeline;
  if (!pipeline.stage_blocks && !pipeline.first_blocks && !pipeline.last_blocks) return full;
  // The `layers` of a plan's options are those that the blocks have given.
  pipeline = with_blocks(options.pipeline, static_cast<int>(model.layers.size()));
  return resolved(full);
}

TrainingPlan make_training_plan(const RunInputs& inputs, const TrainerOptions& options) {
  const auto& [model, source, evaluation] = inputs;
  check(model);
  TrainingPlan result{{}, inputs, resolved_for(model, options)};
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
  const bool overlaps = result.options.overlap_steps.value_or(false);
  if (result.options.optimizer_blocks > 0 &&
      (!overlaps || result.options.device != DeviceChoice::kCuda)) {
    result.notes.emplace_back(
        "`optimizer_blocks` has no effect: it is for steps that overlap on a GPU");
  }
  require(result.options.offload_gradients.disk == 0.0, ErrorCode::kConfig, kNoGradientsOnDisk);
  if (result.options.pipeline.stages() > 1 && result.options.pipeline.layers.counts.empty()) {
    result.options.pipeline.layers = balanced_layers(inputs, result.options);
  }
  check_stages(result.options, model);
  result.layout = make_layout(model, result.options);
  const Shape targets = source.target_shape(result.options.micro_batch);
  std::ranges::move(fp8_notes(result.options, result.layout, targets.numel()),
                    std::back_inserter(result.notes));
  std::ranges::move(fp8_gpu_notes(result.options, result.layout, targets.numel()),
                    std::back_inserter(result.notes));
  result.step = plan_step(result.layout, plan_options(result.options, inputs, result.layout));
  require_valid(result.step);
  if (std::string note = gather_note(result.options, result.step); !note.empty()) {
    result.notes.push_back(std::move(note));
  }
  result.snapshot = with_snapshot(result.step, result.options.optimizer.stochastic_rounding);
  require_valid(result.snapshot);
  const GivenSamples given(source);
  if (evaluation != nullptr) {
    require(result.options.evaluation_samples >= 1, ErrorCode::kConfig,
            "evaluation_samples: ", result.options.evaluation_samples,
            " is out of range; allowed: at least 1, where there is data to evaluate with");
    result.evaluation = plan_forward(result);
  }
  if (result.options.forward) result.forward = plan_forward(result);
  account(result, given);
  if (std::string note = price_note(result, inputs); !note.empty()) {
    result.notes.push_back(std::move(note));
  }
  if (result.disk_bytes > 0 && !result.options.offload_path.empty()) {
    check_offload_path(result.options.offload_path,
                       result.disk_bytes * ranks_on_host(result.options));
  }
  return result;
}

}  // namespace tessera
