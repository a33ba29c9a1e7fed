#include "tessera/trainer/trainer_options.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "fp8_settings.h"
#include "tessera/core/error.h"
#include "tessera/core/usable_cores.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera {
namespace {

/// Checks the limits of each setting by itself.
void check_rows(const TrainerOptions& options) {
  for (const auto& row : trainer_rows()) {
    try {
      checked_value(row.setting, row.read(options));
    } catch (const Error& error) {
      fail(ErrorCode::kConfig, row.setting.name, ": ", error.what());
    }
  }
}

/// Every hyperparameter that the optimizer takes, and its weight decay.
void fill_in(OptimizerOptions& options) {
  const Optimizer& optimizer = find_optimizer(options.name);
  options.name = optimizer.name;
  const std::vector<double> values = hyperparameter_values(options);
  for (std::size_t i = 0; i < values.size(); ++i) {
    options.hyperparameters[std::string(optimizer.hyperparameters[i].name)] = values[i];
  }
  if (!options.weight_decay) options.weight_decay = static_cast<float>(optimizer.weight_decay);
}

void check_rounding(const TrainerOptions& options) {
  require(!options.optimizer.stochastic_rounding || options.precision == DType::kBFloat16,
          ErrorCode::kConfig, "stochastic_rounding is true, but precision is ",
          to_string(options.precision),
          ": parameters of fp32 are not rounded, and those of fp16 to the nearest only; use "
          "`precision` bf16, or leave `optimizer.stochastic_rounding` out");
}

/// Backward writes gradients in the dtype that they are reduced in, and a product is written in
/// fp32 or in the dtype of its operands.
void check_reduction(const TrainerOptions& options) {
  const auto reduce = to_string(options.reduce_dtype), precision = to_string(options.precision);
  require(options.reduce_dtype == DType::kFloat32 || options.reduce_dtype == options.precision,
          ErrorCode::kConfig, "reduce_dtype is ", reduce, ", but with precision ", precision,
          " gradients are written and sent in ",
          options.precision == DType::kFloat32 ? "fp32" : concat("fp32 or ", precision),
          "; use `precision` ", reduce, ", or leave `reduce_dtype` out");
}

void check_activations(const TrainerOptions& options) {
  require(
      options.offload_activations == ActivationOffload::kNone ||
          options.policy.recompute == Recompute::kFull,
      ErrorCode::kConfig, "offload_activations is ", to_string(options.offload_activations),
      ", but recompute is ", to_string(options.policy.recompute),
      ": only layers that keep nothing but their input have it wait there; use `policy.recompute` "
      "full, or leave `offload_activations` out");
}

void check_attention(const TrainerOptions& options) {
  if (options.attention != AttentionBackend::kCudnn) return;
  require(options.device != DeviceChoice::kCpu, ErrorCode::kConfig,
          "attention is cudnn, but the ranks run on the CPU, which has its own only; leave "
          "`attention` out, or use `device` cuda");
  require(
      options.precision != DType::kFloat32, ErrorCode::kConfig,
      "attention is cudnn, which takes bf16 and fp16 only; use `precision` bf16, or `attention` "
      "auto");
}

/// A rank has the threads of its share of the usable cores, or of the CPUs given to ranks instead.
int default_threads(const TrainerOptions& options) {
  const int ranks = ranks_on_host(options);
  const int threads = default_threads_per_rank(ranks);
  if (options.bind_core_list.empty()) return threads;
  const auto given = static_cast<int>(parse_cpu_list(options.bind_core_list).size());
  return std::clamp(given / std::max(1, ranks), 1, threads);
}

}  // namespace

int default_threads_per_rank(int ranks) { return std::max(1, usable_cores() / std::max(1, ranks)); }

int ranks_on_host(const TrainerOptions& options) {
  return options.world == nullptr ? options.ranks : options.world->ranks_on_host();
}

namespace {

void check_pipeline(TrainerOptions& options) {
  PipelineSplit& pipeline = options.pipeline;
  require(options.ranks % pipeline.ranks == 0, ErrorCode::kConfig, "pipeline is ", pipeline.ranks,
          ", but ranks is ", options.ranks,
          ": each stage has the same number of ranks; choose a `pipeline.ranks` that divides the "
          "ranks");
  if (pipeline.waits_for_blocks()) return;
  pipeline = resolved_pipeline(pipeline);
  const int stages = pipeline.stages();
  const std::vector<int>& counts = pipeline.layers.counts;
  require(counts.empty() || static_cast<int>(counts.size()) == stages, ErrorCode::kConfig,
          "pipeline_split has ", counts.size(), " stages, but there are ", stages, " on ",
          pipeline.ranks, pipeline.ranks == 1 ? " pipeline rank" : " pipeline ranks");
  require(stages == 1 || pipeline.tied_apart.value_or(true), ErrorCode::kConfig,
          "tied_apart is false, and there are ", stages,
          " stages, which add up their gradients of tied parameters apart");
  pipeline.tied_apart = pipeline.tied_apart.value_or(stages > 1);
}

}  // namespace

TrainerOptions resolved(TrainerOptions options) {
  check_rows(options);
  require(options.world == nullptr || options.world->size() == options.ranks, ErrorCode::kConfig,
          "ranks is ", options.ranks, ", but the ", options.world ? options.world->processes() : 0,
          " processes of the run have ", options.world ? options.world->size() : 0);
  check_pipeline(options);
  check_reduction(options);
  check_activations(options);
  check_attention(options);
  check_fp8(options);
  fill_in(options.optimizer);
  options.loss_scale = resolved(options.loss_scale, options.precision);
  check_rounding(options);
  if (options.learning_rate.total_steps == 1) options.learning_rate.total_steps = options.steps;
  check(options.learning_rate);
  options.learning_rate = resolved(options.learning_rate);

  const Strategy& strategy = find_strategy(options.strategy);
  options.strategy = strategy.name;
  if (!options.trainable_strategy.empty()) {
    options.trainable_strategy = find_strategy(options.trainable_strategy).name;
  }
  const bool own_placement = options.placement.has_value();
  if (!own_placement) options.placement = placement_of(options);
  check(*options.placement);
  if (!options.reshard_after_forward) {
    options.reshard_after_forward = strategy.reshard_after_forward;
  }
  const int replicas = options.replicas > 0
                           ? options.replicas
                           : default_replicas(strategy, options.ranks / options.pipeline.ranks,
                                              options.ranks_per_node);
  options.replicas =
      make_mesh(options.ranks / options.pipeline.ranks, replicas).size(Axis::kReplicate);
  if (options.threads_per_rank == 0) {
    options.threads_per_rank = default_threads(options);
  }
  return options;
}

Mesh mesh_of(const TrainerOptions& options) {
  const int pipeline_ranks = options.pipeline.ranks;
  Mesh mesh = make_mesh(options.ranks / pipeline_ranks, std::max(options.replicas, 1));
  mesh.set_size(Axis::kPipeline, pipeline_ranks);
  return mesh;
}

SampleDivision sample_division(const TrainerOptions& options) {
  return divide_samples(mesh_of(options), options.accumulate, options.micro_batch);
}

Placement placement_of(const TrainerOptions& options) {
  const Placement own = find_strategy(options.strategy).placement;
  if (options.trainable_strategy.empty()) return own;
  Placement placement = find_strategy(options.trainable_strategy).placement;
  if (own.parameter != placement.parameter) placement.frozen = own.parameter;
  return placement;
}

std::string strategy_note(const TrainerOptions& resolved) {
  const Strategy& strategy = find_strategy(resolved.strategy);
  if (resolved.placement != strategy.placement || !resolved.trainable_strategy.empty()) return "";
  return strategy_note(strategy, mesh_of(resolved));
}

TrainerOptions with_strategy(TrainerOptions options, std::string_view name) {
  options.strategy = find_strategy(name).name;
  options.placement.reset();
  options.reshard_after_forward.reset();
  options.replicas = 0;
  return options;
}

std::string to_string(const WrapPolicy& policy) {
  switch (policy.kind) {
    case WrapPolicy::Kind::kLayer:
      return "layer";
    case WrapPolicy::Kind::kSize:
      return concat("size:", policy.min_numel);
    case WrapPolicy::Kind::kNone:
      return "none";
  }
  return "unknown";
}

std::string to_string(const StepRange& steps) {
  return steps.first == steps.last ? concat(steps.first) : concat(steps.first, "-", steps.last);
}

StepRange parse_step_range(std::string_view text) {
  StepRange steps;
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, steps.first);
  steps.last = steps.first;
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
    read = std::from_chars(read.ptr + 1, end, steps.last);
  }
  require(
      read.ec == std::errc() && read.ptr == end && steps.first >= 1 && steps.last >= steps.first,
      ErrorCode::kConfig, "'", text,
      "' names no steps; write them like 3-5, or 7 for one step, counted from 1");
  return steps;
}

std::string_view to_string(ActivationOffload offload) {
  return offload == ActivationOffload::kNone ? "none" : "host";
}

std::string to_string(const Offload& offload) {
  if (offload.host == 0.0 && offload.disk == 0.0) return "none";
  const std::string_view tier = offload.disk > 0.0 ? "disk" : "host";
  const double share = std::max(offload.host, offload.disk);
  return share == 1.0 ? std::string(tier) : concat(tier, ':', nlohmann::json(share).dump());
}

Offload parse_offload(std::string_view text) {
  if (text == "none") return {};
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view tier = text.substr(0, colon);
  double share = 1.0;
  bool is_share = true;
  if (colon < text.size()) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), share);
    is_share =
        error == std::errc() && end == digits.data() + digits.size() && share > 0.0 && share <= 1.0;
  }
  if (is_share && tier == "host") return {.host = share};
  if (is_share && tier == "disk") return {.disk = share};
  fail(ErrorCode::kConfig, "'", text,
       "' is no place for the training state; choose none (the device's memory), host, disk, or "
       "host:SHARE or disk:SHARE with a share of the units above 0 and up to 1");
}

WrapPolicy parse_wrap_policy(std::string_view text) {
  if (text == "layer") return {};
  if (text == "none") return {WrapPolicy::Kind::kNone, 0};
  constexpr std::string_view kSizePrefix = "size:";
  if (text.substr(0, kSizePrefix.size()) == kSizePrefix) {
    const std::string_view digits = text.substr(kSizePrefix.size());
    WrapPolicy policy{WrapPolicy::Kind::kSize, 0};
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), policy.min_numel);
    if (error == std::errc() && end == digits.data() + digits.size() && policy.min_numel > 0) {
      return policy;
    }
  }
  fail(ErrorCode::kConfig, "'", text,
       "' is not a wrap policy; choose layer (one unit per layer), none (the whole model is one "
       "unit) or size:N (at least N parameters per unit)");
}

}  // namespace tessera
