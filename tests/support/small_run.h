#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/faulty_disk.h"
#include "support/delays.h"
#include "support/folder_in_memory.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/kernels/philox.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/sharding/validate.h"
#include "tessera/trainer/launch.h"

// A few steps of a small model on in-process ranks, by the sharding engine alone.
namespace tessera::test {

/// Pseudo-random tokens from a fifth of the vocabulary, so that there is something to learn. Sample
/// i is a pure function of i.
class RandomTokens : public BatchSource {
 public:
  RandomTokens(std::int64_t length, std::int64_t vocab, bool ignores_some)
      : length_(length), vocab_(vocab), ignores_some_(ignores_some) {}
  Shape input_shape(std::int64_t n) const override {
    return packed ? Shape{2, n, length_} : Shape{n, length_};
  }
  Shape target_shape(std::int64_t n) const override { return Shape{n, length_}; }
  DType input_dtype() const override { return DType::kInt32; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    std::int64_t counted = 0;
    const RandomKey key{7, stream_of("tokens")};
    for (std::int64_t i = 0; i < n * length_; ++i) {
      const std::int64_t position = first * length_ + i;
      const auto token = [&](std::int64_t p) {
        return static_cast<std::int32_t>(random_word(key, p) %
                                         static_cast<std::uint32_t>(vocab_ / 5));
      };
      inputs.as<std::int32_t>()[i] = token(position);
      const bool ignored = ignores_some_ && random_word(key, -1 - position) % 3 == 0;
      targets.as<std::int32_t>()[i] = ignored ? -1 : token(position + 1);
      counted += ignored ? 0 : 1;
      // Where the document of each place begins.
      if (packed) inputs.as<std::int32_t>()[n * length_ + i] = i % length_ < 4 ? 0 : 4;
    }
    return counted;
  }

  bool packed = false;  ///< a sample is two documents

 private:
  std::int64_t length_, vocab_;
  bool ignores_some_;
};

inline constexpr std::int64_t kSmallBatch = 2;  ///< samples of a micro-step

struct SmallRun {
  int ranks = 1;                    ///< of each stage
  int layers = 3;                   ///< blocks of small_gpt()
  bool tied = true;                 ///< its head, of families in which it may be
  std::vector<int> first_layers{};  ///< by stage; empty: one
  int virtual_stages = 1;           ///< on each pipeline rank
  PipelineOrder pipeline_order = PipelineOrder::kOneForwardOneBackward;
  std::vector<std::vector<StagePass>> listed{};  ///< of PipelineOrder::kListed
  int pipeline_prefetch = 1;
  bool tied_apart = false;  ///< see make_layout(); always with several stages
  int replicas = 0;         ///< 0: as the strategy has it
  std::string strategy = "full_shard";
  std::string optimizer = "adamw";
  std::vector<std::pair<std::string, double>> hyperparameters{};
  int steps = 3;
  int micro_steps = 1;
  std::int64_t micro_batch = kSmallBatch;
  StepPolicy policy{};
  bool accumulate_unsharded = false;
  ReductionOrder reduction_order = ReductionOrder::kRank;
  DType dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  WrapPolicy wrap{};
  bool ignores_some = true;
  bool packed = false;  ///< samples are of two documents each
  float dropout = 0.0F;
  double clip_norm = 0.5;
  bool updates_wait_for_norm = true;
  bool stochastic_rounding = false;
  double offload_optimizer = 0.0;             ///< share of units
  double offload_parameters = 0.0;            ///< the same
  double offload_gradients = 0.0;             ///< the same
  double disk_optimizer = 0.0;                ///< the same
  double disk_parameters = 0.0;               ///< the same
  bool offload_activations = false;           ///< with Recompute::kFull
  int steps_in_flight = 1;                    ///< 2: the optimizer has a lane of its own, too
  int threads = 1;                            ///< per rank
  std::optional<std::uint32_t> delay_seed{};  ///< random delays before every task of every lane
  std::function<void(Model&)> edit{};         ///< e.g. freezes parameters
  GptFamily family = GptFamily::kGpt2;        ///< of small_gpt()
  AdapterConfig adapter{};                    ///< of it, too
  std::string trainable_strategy{};           ///< of what is not frozen, if it has another
  WeightFormat base_format = WeightFormat::kNone;
  Fp8Options fp8{};                      ///< with bf16
  std::vector<FullParameter> initial{};  ///< if not empty, instead of random ones
};

/// One pipeline rank's memory and traffic of a step.
struct StageResult {
  MemoryPeak predicted, measured;
  MemoryPeak predicted_host, measured_host;
  Traffic predicted_traffic, counted_traffic;
};

struct SmallResult {
  Schedule schedule;  ///< the first pipeline rank's
  StepPlan step;
  std::vector<StageResult> stages;  ///< by pipeline rank
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<FullParameter> parameters;
  std::vector<Fp8History> histories;  ///< of delayed scaling, of all pipeline ranks
  bool ranks_have_one_history = true;
  MemoryPeak predicted, measured;
  MemoryPeak predicted_host, measured_host;
  Traffic predicted_traffic, counted_traffic;  ///< of one step
  std::int64_t measured_disk = 0;              ///< the file of rank 0
};

/// Odd sizes on purpose; small enough for hundreds of runs.
inline GptConfig small_gpt(float dropout = 0.0F, GptFamily family = GptFamily::kGpt2) {
  GptConfig config{.vocab_size = 61,
                   .context_length = 11,
                   .layers = 3,
                   .heads = 2,
                   .width = 14,
                   .dropout = dropout,
                   .tie_embedding = true};
  if (family == GptFamily::kGpt2) return config;
  config.family = family;
  if (family == GptFamily::kBert) {
    config.mlp_width = 17;
    config.norm_epsilon = 1e-12F;
    config.token_types = 2;
    return config;
  }
  const bool gemma = family == GptFamily::kGemma2 || family == GptFamily::kGemma3;
  config.tie_embedding = family == GptFamily::kQwen2 || gemma;
  config.heads = 6;
  config.kv_heads = 3;
  config.head_width = 10;
  config.mlp_width = 17;
  config.window = family == GptFamily::kMistral || gemma ? 4 : 0;
  config.window_period = gemma ? 2 : 0;
  if (family == GptFamily::kGemma2) {
    config.attention_cap = 2.0;
    config.logit_cap = 3.0;
  } else if (family == GptFamily::kGemma3) {
    config.window_rotary = RotaryConfig{.base = 100.0};
  }
  config.rotary.share = family == GptFamily::kPhi3 ? 0.6 : 1.0;
  return config;
}

/// What `strategy` and `trainable_strategy` say.
inline Placement placement_of(const SmallRun& run) {
  Placement placement = find_strategy(run.strategy).placement;
  if (run.trainable_strategy.empty()) return placement;
  const AxisSet frozen = placement.parameter;
  placement = find_strategy(run.trainable_strategy).placement;
  placement.frozen = frozen;
  return placement;
}

inline int pipeline_ranks(const SmallRun& run) {
  if (!run.listed.empty()) return static_cast<int>(run.listed.size());
  return std::max(1, static_cast<int>(run.first_layers.size()) / run.virtual_stages);
}

inline OptimizerOptions optimizer_options(const SmallRun& run) {
  OptimizerOptions options;
  options.name = run.optimizer;
  options.hyperparameters = {run.hyperparameters.begin(), run.hyperparameters.end()};
  options.clip_norm = run.clip_norm;
  options.stochastic_rounding = run.stochastic_rounding;
  return options;
}

inline PlanOptions plan_options(const SmallRun& run) {
  const OptimizerOptions optimizer = optimizer_options(run);
  const Strategy& strategy = find_strategy(run.strategy);
  const int replicas = run.replicas > 0 ? run.replicas : default_replicas(strategy, run.ranks);
  Mesh mesh = make_mesh(run.ranks, replicas);
  mesh.set_size(Axis::kPipeline, pipeline_ranks(run));
  return {.mesh = mesh,
          .placement = placement_of(run),
          .pipeline = {.first_layers = run.first_layers,
                       .stage_ranks = run.listed.empty()
                                          ? stage_ranks(run.pipeline_order, pipeline_ranks(run),
                                                        static_cast<int>(run.first_layers.size()))
                                          : stage_ranks(run.listed),
                       .order = run.pipeline_order,
                       .listed = run.listed,
                       .prefetch = run.pipeline_prefetch},
          .reshard_after_forward = strategy.reshard_after_forward,
          .reduction_order = run.reduction_order,
          .parameter_dtype = run.dtype,
          .reduce_dtype = run.reduce_dtype,
          .micro_steps = run.micro_steps,
          .accumulate_unsharded = run.accumulate_unsharded,
          .policy = run.policy,
          .overlap_optimizer = run.steps_in_flight > 1,
          .gather_codes = run.fp8.enabled && run.fp8.gather_format == GatherFormat::kE4M3,
          .scale_units = run.fp8.scale_units,
          .fp8_history = run.fp8.is_delayed() ? run.fp8.history : 0,
          .updates_wait_for_norm = run.updates_wait_for_norm,
          .optimizer_tensors = optimizer_tensors(optimizer),
          .scale_parameter = scale_parameter(optimizer),
          .offload_optimizer = run.offload_optimizer,
          .offload_parameters = run.offload_parameters,
          .disk_optimizer = run.disk_optimizer,
          .disk_parameters = run.disk_parameters,
          .offload_gradients = run.offload_gradients};
}

/// With the sizes of what waits on the host.
inline PlanOptions plan_options(const SmallRun& run, const Model& model, const ModelLayout& layout,
                                const BatchSource& source) {
  PlanOptions options = plan_options(run);
  if (!run.offload_activations && run.first_layers.empty()) return options;
  const std::vector<std::int64_t> inputs =
      layer_input_numels(model, layout, source, run.micro_batch, run.dtype);
  if (run.offload_activations) options.offload_activations = inputs;
  options.pipeline.input_numels = stage_input_numels(inputs, run.first_layers);
  return options;
}

inline ModelLayout layout_of(const SmallRun& run, const Model& model) {
  const std::int64_t alignment = flat_alignment(plan_options(run).optimizer_tensors);
  return with_fp8_apart(make_layout(model, run.wrap, run.ranks, alignment,
                                    run.tied_apart || run.first_layers.size() > 1),
                        run.fp8, run.ranks, alignment);
}

inline ExecutorOptions executor_options(const SmallRun& run) {
  ExecutorOptions options;
  options.optimizer = optimizer_options(run);
  options.seed = 42;
  options.fp8 = run.fp8;
  options.micro_batch = run.micro_batch;
  options.threads = run.threads;
  options.steps_in_flight = run.steps_in_flight;
  return options;
}

inline SmallResult train(const SmallRun& run) {
  GptConfig config = small_gpt(run.dropout, run.family);
  config.layers = run.layers;
  config.tie_embedding = config.tie_embedding && run.tied;
  config.adapter = run.adapter;
  config.base_format = run.base_format;
  Model model = make_gpt(config);
  if (run.edit) run.edit(model);
  RandomTokens source(11, 61, run.ignores_some);
  source.packed = run.packed;
  const ModelLayout layout = layout_of(run, model);
  SmallResult result;
  result.step = plan_step(layout, plan_options(run, model, layout, source));
  result.schedule = result.step.ranks.front();
  require_valid(result.step);
  ExecutorOptions options = executor_options(run);
  std::vector<const Schedule*> schedules;
  for (const Schedule& schedule : result.step.ranks) {
    const Simulation simulated = simulate(schedule, layout, model, source, options);
    result.stages.push_back({.predicted = simulated.memory,
                             .measured = {},
                             .predicted_host = simulated.host_memory,
                             .measured_host = {},
                             .predicted_traffic = account_traffic(schedule),
                             .counted_traffic = {}});
    schedules.push_back(&schedule);
  }
  const int world_size = result.schedule.mesh.world_size();
  const auto world = make_thread_group(world_size);
  std::vector<std::pair<MemoryPeak, MemoryPeak>> peaks(static_cast<std::size_t>(world_size));
  std::mutex mutex;
  launch_ranks(world, [&](int rank, ProcessGroup& group) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(group, schedules);
    const int stage = result.schedule.mesh.index(Axis::kPipeline, rank);
    const Schedule& schedule = *schedules[static_cast<std::size_t>(stage)];
    const bool is_first = rank % run.ranks == 0;  // of its stage
    StageResult& own_stage = result.stages[static_cast<std::size_t>(stage)];
    ExecutorOptions own = options;
    if (run.delay_seed) own.before_task = random_delays(*run.delay_seed, rank);
    FaultyCalls calls;  // which has no faults, but takes folders in memory
    calls.plain_queues = true;
    TrainingState state(
        layout, state_options(schedule), rank, memory,
        {.folder = folder_in_memory().string(), .block_bytes = kDiskAlignment, .calls = &calls});
    if (rank == 0) result.measured_disk = state.disk_bytes();
    Executor executor(state, model, {{&schedule, &source}}, groups, memory, own);
    if (!run.initial.empty()) {
      executor.set_parameters([&](const std::string& name) {
        return std::span(std::ranges::find(run.initial, name, &FullParameter::name)->values);
      });
    }
    int begun = 0;
    for (int step = 0; step < run.steps; ++step) {
      while (begun < std::min(step + run.steps_in_flight, run.steps)) {
        executor.begin_step(begun++, 1e-2);
      }
      const StepResult r = executor.finish_step();
      if (is_first && step == 0 && run.steps_in_flight == 1) {
        own_stage.counted_traffic = executor.traffic();
      }
      if (rank != 0) continue;
      result.losses.push_back(r.loss);
      result.norms.push_back(r.gradient_norm);
    }
    peaks[static_cast<std::size_t>(rank)] = {memory.peak(), memory.peak(Tier::kHost)};
    const std::vector<Fp8History> histories = executor.fp8_histories();
    auto parameters = executor.gather_parameters();
    const std::lock_guard lock(mutex);
    for (const Fp8History& history : histories) {
      const auto known = std::ranges::find(result.histories, history.name, &Fp8History::name);
      if (known == result.histories.end()) {
        result.histories.push_back(history);
      } else if (*known != history) {
        result.ranks_have_one_history = false;
      }
    }
    std::ranges::sort(result.histories, {}, &Fp8History::name);
    if (rank == 0) result.parameters = std::move(parameters);
  });
  for (int rank = 0; rank < world_size; ++rank) {
    StageResult& stage = result.stages[static_cast<std::size_t>(rank / run.ranks)];
    const auto& [device, host] = peaks[static_cast<std::size_t>(rank)];
    const bool is_first = rank % run.ranks == 0;
    if (is_first) stage.measured = device, stage.measured_host = host;
    if (!(device == stage.measured)) stage.measured.total = -1;  // ranks must agree
    if (!(host == stage.measured_host)) stage.measured_host.total = -1;
  }
  const StageResult& first = result.stages.front();
  result.predicted = first.predicted;
  result.measured = first.measured;
  result.predicted_host = first.predicted_host;
  result.measured_host = first.measured_host;
  result.predicted_traffic = first.predicted_traffic;
  result.counted_traffic = first.counted_traffic;
  return result;
}

/// Bitwise equality of two lists of parameters.
inline bool same_bits(const std::vector<FullParameter>& a, const std::vector<FullParameter>& b) {
  return std::ranges::equal(a, b, [](const FullParameter& x, const FullParameter& y) {
    return x.name == y.name && x.values.size() == y.values.size() &&
           std::memcmp(x.values.data(), y.values.data(), x.values.size() * sizeof(float)) == 0;
  });
}

}  // namespace tessera::test
