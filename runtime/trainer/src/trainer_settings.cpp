#include "tessera/trainer/trainer_settings.h"

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>

#include "tessera/core/error.h"
#include "tessera/core/mesh.h"
#include "tessera/trainer/byte_size.h"

namespace tessera {
namespace {

constexpr double kMaxInt = std::numeric_limits<int>::max();
constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kFull};

/// The defaults of the library, which are those of the settings.
const TrainerOptions& defaults() {
  static const TrainerOptions options{};
  return options;
}

/// The double of the shortest text for `value`: 0.9 and not 0.8999999761581421.
double as_written(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double result = 0.0;
  std::from_chars(text.data(), end, result);
  return result;
}

std::string strategy_help() {
  std::string text = "how the training state is spread over ranks:";
  for (const Strategy& strategy : strategies()) {
    text += "\n  " + strategy.name + ": " + strategy.summary;
  }
  return text;
}

void check_strategy(const nlohmann::json& value) { find_strategy(value.get<std::string>()); }
void check_axes(const nlohmann::json& value) { parse_axes(value.get<std::string>()); }
void check_wrap(const nlohmann::json& value) { parse_wrap_policy(value.get<std::string>()); }
void check_path(const nlohmann::json& value) {
  require(!value.get<std::string>().empty(), ErrorCode::kConfig,
          "is empty; give a path, or leave it out");
}

// What is computed with in fp32 must not become 0, 1 or infinite on the way there.
using Fp32 = std::numeric_limits<float>;

void check_fp32(const nlohmann::json& value) {
  require(value.get<double>() <= Fp32::max(), ErrorCode::kConfig, value.dump(),
          " is out of range of fp32; it must be at most about 3.4e38");
}
void check_positive(const nlohmann::json& value) {
  require(value.get<double>() > 0.0, ErrorCode::kConfig, value.dump(),
          " is out of range; it must be above 0");
  require(value.get<double>() >= Fp32::min() && value.get<double>() <= Fp32::max(),
          ErrorCode::kConfig, value.dump(),
          " is out of range of fp32; it must be about 1.2e-38 to 3.4e38");
}
void check_below_one(const nlohmann::json& value) {
  const auto number = value.get<double>();
  require(number < 1.0, ErrorCode::kConfig, value.dump(),
          " is out of range; it must be at least 0 and below 1");
  require(static_cast<float>(number) < 1.0F, ErrorCode::kConfig, value.dump(),
          " is 1 in fp32; it must be at most about 0.99999994");
}

using enum SettingType;

std::vector<Setting> sharding_settings() {
  const auto placement = [](const char* name, const char* what) {
    return Setting{.name = name,
                   .fallback = nullptr,
                   .help = std::string("over which axes ") + what +
                           " are sharded: none, shard, replicate or replicate+shard [as the "
                           "strategy has it]",
                   .check = check_axes};
  };
  return {
      {.name = "ranks",
       .type = kInteger,
       .fallback = defaults().ranks,
       .help =
           "ranks that train together: threads of this process, or those that a launcher starts",
       .minimum = 1,
       .maximum = kMaxRanks},
      {.name = "strategy",
       .fallback = defaults().strategy,
       .help = strategy_help(),
       .check = check_strategy},
      {.name = "replicas",
       .type = kInteger,
       .fallback = defaults().replicas,
       .help =
           "copies of the sharded state; ranks / replicas share one (0: as the strategy has it)",
       .minimum = 0,
       .maximum = kMaxRanks},
      placement("parameter_placement", "parameters"),
      placement("gradient_placement", "gradients"),
      placement("optimizer_placement", "optimizer states"),
      {.name = "reshard_after_forward",
       .type = kFlag,
       .fallback = nullptr,
       .help = "release gathered parameters after forward [as the strategy has it]"},
      {.name = "reduction_order",
       .fallback = to_string(defaults().reduction_order),
       .help =
           "how gradients are added: by rank (same bits for every strategy), or inside replicas "
           "first (fewer bytes between them)",
       .choices = {"rank", "hierarchical"}},
      {.name = "wrap",
       .fallback = to_string(defaults().wrap),
       .help = "what is gathered together: layer, size:N (at least N parameters) or none (all)",
       .check = check_wrap},
      {.name = "prefetch_forward",
       .type = kInteger,
       .fallback = defaults().prefetch_forward,
       .help = "unshards issued ahead of use in forward",
       .minimum = 0,
       .maximum = 1024},
      {.name = "prefetch_backward",
       .type = kInteger,
       .fallback = defaults().prefetch_backward,
       .help = "unshards ahead, and reductions behind, in backward",
       .minimum = 0,
       .maximum = 1024},
  };
}

std::vector<Setting> step_settings() {
  return {
      {.name = "steps",
       .type = kInteger,
       .fallback = defaults().steps,
       .help = "optimizer steps",
       .minimum = 1},
      {.name = "micro_batch",
       .type = kInteger,
       .fallback = defaults().micro_batch,
       .help = "samples per micro-step and rank",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "accumulate",
       .type = kInteger,
       .fallback = defaults().accumulate,
       .help = "micro-steps per step",
       .minimum = 1,
       .maximum = kMaxAccumulate},
      {.name = "accumulate_unsharded",
       .type = kFlag,
       .fallback = defaults().accumulate_unsharded,
       .help = "keep whole gradients until the last micro-step and reduce them once"},
      {.name = "recompute",
       .fallback = to_string(defaults().recompute),
       .help = "activations to compute again in backward: none, selective (attention and GELU) or "
               "full",
       .choices = {"none", "selective", "full"}},
      {.name = "precision",
       .fallback = to_string(defaults().precision),
       .help = "of parameters and activations",
       .choices = {"fp32", "bf16"}},
      {.name = "reduce_dtype",
       .fallback = to_string(defaults().reduce_dtype),
       .help = "of gradients on their way; bf16 needs bf16 parameters, too",
       .choices = {"fp32", "bf16"}},
      {.name = "seed",
       .type = kInteger,
       .fallback = defaults().seed,
       .help = "of initialisation, dropout and the order of data",
       .minimum = 0},
  };
}

std::vector<Setting> optimizer_settings() {
  return {
      {.name = "learning_rate",
       .type = kNumber,
       .fallback = defaults().learning_rate.peak,
       .help = "peak learning rate",
       .minimum = 0,
       .check = check_fp32},
      {.name = "minimum_learning_rate",
       .type = kNumber,
       .fallback = nullptr,
       .help = "where the decay ends [a tenth of the peak]",
       .minimum = 0,
       .check = check_fp32},
      {.name = "learning_rate_schedule",
       .fallback = to_string(defaults().learning_rate.kind),
       .help = "shape after warm-up; wsd is stable, then decays over the last --decay-steps",
       .choices = {"constant", "linear", "cosine", "wsd"}},
      {.name = "warmup_steps",
       .type = kInteger,
       .fallback = nullptr,
       .help = "steps of linear warm-up [a tenth of the steps, at most 100]",
       .minimum = 0},
      {.name = "decay_steps",
       .type = kInteger,
       .fallback = nullptr,
       .help = "steps of wsd's decay [a fifth of the steps]",
       .minimum = 0},
      {.name = "weight_decay",
       .type = kNumber,
       .fallback = as_written(defaults().optimizer.weight_decay),
       .help = "of matrices",
       .minimum = 0,
       .check = check_fp32},
      {.name = "beta1",
       .type = kNumber,
       .fallback = as_written(defaults().optimizer.beta1),
       .help = "of AdamW's first moment",
       .minimum = 0,
       .check = check_below_one},
      {.name = "beta2",
       .type = kNumber,
       .fallback = as_written(defaults().optimizer.beta2),
       .help = "of AdamW's second moment",
       .minimum = 0,
       .check = check_below_one},
      {.name = "epsilon",
       .type = kNumber,
       .fallback = as_written(defaults().optimizer.epsilon),
       .help = "of AdamW's denominator",
       .minimum = 0,
       .check = check_positive},
      {.name = "clip_norm",
       .type = kNumber,
       .fallback = defaults().optimizer.clip_norm,
       .help = "gradients are scaled down to this global norm; 0: never",
       .minimum = 0},
      {.name = "stochastic_rounding",
       .type = kFlag,
       .fallback = defaults().optimizer.stochastic_rounding,
       .help = "bf16 parameters are rounded up or down at random, so that small updates move them "
               "too; the same bits for every strategy"},
  };
}

std::vector<Setting> machine_settings() {
  return {
      {.name = "device",
       .fallback = to_string(defaults().device),
       .help = "where ranks compute; auto: a GPU if there is one",
       .choices = {"auto", "cpu", "cuda"}},
      {.name = "group",
       .fallback = to_string(defaults().group),
       .help = "what ranks of one process talk through: nccl if each has a GPU of its own, thread "
               "if they share GPUs or are on the CPU; auto: as there are GPUs",
       .choices = {"auto", "thread", "nccl"}},
      {.name = "deterministic_collectives",
       .type = kFlag,
       .fallback = defaults().deterministic_collectives,
       .help = "NCCL adds in rank order, for the bits of every other group, but slower"},
      {.name = "attention",
       .fallback = to_string(defaults().attention),
       .help =
           "whose attention a GPU runs; auto: cuDNN's where it fits and our own elsewhere, with "
           "a note; cudnn: cuDNN's or an error",
       .choices = {"auto", "own", "cudnn"}},
      {.name = "deterministic_attention",
       .type = kFlag,
       .fallback = defaults().deterministic_attention,
       .help =
           "cuDNN's attention gives the same bits every time; that takes memory that grows with "
           "the square of the length"},
      {.name = "cuda_graph",
       .type = kFlag,
       .fallback = defaults().cuda_graph,
       .help = "replay steps as a CUDA graph where that is possible"},
      {.name = "threads_per_rank",
       .type = kInteger,
       .fallback = defaults().threads_per_rank,
       .help = "threads of a rank's kernels (0: the cores that this process may use, divided by "
               "the ranks)",
       .minimum = 0,
       .maximum = 4096},
      {.name = "memory_limit",
       .type = kBytes,
       .fallback = defaults().memory_limit_bytes,
       .help = "of one rank, like 4GiB; a run that is predicted to need more is refused (0: what "
               "the machine has)"},
      {.name = "timeout",
       .type = kNumber,
       .fallback = std::chrono::duration<double>(defaults().timeout).count(),
       .help =
           "seconds that a rank waits for its peers; in a step that is replayed as a CUDA graph, "
           "in all",
       .minimum = 0.001,
       .maximum = 1e6},
      {.name = "check_collectives",
       .type = kFlag,
       .fallback = defaults().check_collectives,
       .help = "compare every collective over all ranks before it runs"},
      {.name = "trace",
       .type = kFlag,
       .fallback = nullptr,
       .help =
           "measure communication that computation does not hide; steps are then no CUDA graphs "
           "[true where they are none anyway]"},
      {.name = "allow_non_finite",
       .type = kFlag,
       .fallback = defaults().allow_non_finite,
       .help = "go on when the loss is nan or infinite"},
      {.name = "parameters_hash",
       .type = kFlag,
       .fallback = defaults().hash_parameters,
       .help = "after the last step gather the parameters once more, for their SHA-256"},
  };
}

void set_group(std::vector<Setting>& settings, const char* group, std::vector<Setting>& all) {
  for (Setting& setting : settings) {
    setting.group = group;
    all.push_back(std::move(setting));
  }
}

LearningRateSchedule learning_rate(const Config& config, std::int64_t steps) {
  LearningRateSchedule result;
  result.kind = parse_learning_rate_kind(config.get<std::string>("learning_rate_schedule"));
  result.peak = config.get<double>("learning_rate");
  if (!config.is_null("minimum_learning_rate")) {
    result.minimum = config.get<double>("minimum_learning_rate");
  }
  result.total_steps = steps;
  const auto read = [&](const char* name, std::optional<std::int64_t>& value) {
    if (!config.is_null(name)) value = config.get<std::int64_t>(name);
  };
  read("warmup_steps", result.warmup_steps);
  read("decay_steps", result.decay_steps);
  return result;
}

/// The strategy's placement with the states replaced that were given.
std::optional<Placement> placement(const Config& config) {
  bool any = false;
  Placement result = find_strategy(config.get<std::string>("strategy")).placement;
  const auto read = [&](const char* name, AxisSet& axes) {
    if (config.is_null(name)) return;
    axes = parse_axes(config.get<std::string>(name));
    any = true;
  };
  read("parameter_placement", result.parameter);
  read("gradient_placement", result.gradient);
  read("optimizer_placement", result.optimizer);
  return any ? std::optional(result) : std::nullopt;
}

Recompute recompute(const Config& config) {
  const auto text = config.get<std::string>("recompute");
  for (const Recompute value : kRecomputes) {
    if (to_string(value) == text) return value;
  }
  fail(ErrorCode::kInternal, "unknown recompute '", text, "'");
}

}  // namespace

std::vector<Setting> output_settings() {
  const std::string group = "Output";
  return {{.name = "log",
           .help = "write a JSON object per line here: the run, each step, a summary",
           .group = group,
           .check = check_path},
          {.name = "csv",
           .help = "write a table of the steps here",
           .group = group,
           .check = check_path},
          {.name = "tensorboard",
           .help = "write an event file for TensorBoard in this folder",
           .group = group,
           .check = check_path}};
}

std::vector<Setting> trainer_settings() {
  std::vector<Setting> all;
  auto sharding = sharding_settings();
  auto step = step_settings();
  auto optimizer = optimizer_settings();
  auto machine = machine_settings();
  set_group(sharding, "Sharding", all);
  set_group(step, "Step", all);
  set_group(optimizer, "Optimizer", all);
  set_group(machine, "Machine", all);
  return all;
}

TrainerOptions trainer_options(const Config& config) {
  TrainerOptions options;
  options.strategy = config.get<std::string>("strategy");
  options.placement = placement(config);
  if (!config.is_null("reshard_after_forward")) {
    options.reshard_after_forward = config.get<bool>("reshard_after_forward");
  }
  options.ranks = config.get<int>("ranks");
  options.replicas = config.get<int>("replicas");
  options.reduction_order = parse_reduction_order(config.get<std::string>("reduction_order"));
  options.wrap = parse_wrap_policy(config.get<std::string>("wrap"));
  options.prefetch_forward = config.get<int>("prefetch_forward");
  options.prefetch_backward = config.get<int>("prefetch_backward");

  options.steps = config.get<std::int64_t>("steps");
  options.micro_batch = config.get<std::int64_t>("micro_batch");
  options.accumulate = config.get<int>("accumulate");
  options.accumulate_unsharded = config.get<bool>("accumulate_unsharded");
  options.recompute = recompute(config);
  options.precision = parse_dtype(config.get<std::string>("precision"));
  options.reduce_dtype = parse_dtype(config.get<std::string>("reduce_dtype"));
  options.seed = config.get<std::uint64_t>("seed");

  options.optimizer.beta1 = config.get<float>("beta1");
  options.optimizer.beta2 = config.get<float>("beta2");
  options.optimizer.epsilon = config.get<float>("epsilon");
  options.optimizer.weight_decay = config.get<float>("weight_decay");
  options.optimizer.clip_norm = config.get<double>("clip_norm");
  options.optimizer.stochastic_rounding = config.get<bool>("stochastic_rounding");
  options.learning_rate = learning_rate(config, options.steps);

  options.device = parse_device(config.get<std::string>("device"));
  options.group = parse_group(config.get<std::string>("group"));
  options.deterministic_collectives = config.get<bool>("deterministic_collectives");
  options.attention = parse_attention(config.get<std::string>("attention"));
  options.deterministic_attention = config.get<bool>("deterministic_attention");
  options.cuda_graph = config.get<bool>("cuda_graph");
  options.threads_per_rank = config.get<int>("threads_per_rank");
  options.memory_limit_bytes = config.get<std::int64_t>("memory_limit");
  options.timeout = std::chrono::milliseconds(std::llround(config.get<double>("timeout") * 1e3));
  options.check_collectives = config.get<bool>("check_collectives");
  options.trace = config.is_null("trace") ? std::nullopt : std::optional(config.get<bool>("trace"));
  options.allow_non_finite = config.get<bool>("allow_non_finite");
  options.hash_parameters = config.get<bool>("parameters_hash");
  return resolved(options);
}

void set_effective(Config& config, const TrainerOptions& resolved) {
  config.set_effective("strategy", resolved.strategy);
  config.set_effective("replicas", resolved.replicas);
  config.set_effective("parameter_placement", to_string(resolved.placement->parameter));
  config.set_effective("gradient_placement", to_string(resolved.placement->gradient));
  config.set_effective("optimizer_placement", to_string(resolved.placement->optimizer));
  config.set_effective("reshard_after_forward", *resolved.reshard_after_forward);
  config.set_effective("minimum_learning_rate", *resolved.learning_rate.minimum);
  config.set_effective("warmup_steps", *resolved.learning_rate.warmup_steps);
  config.set_effective("decay_steps", *resolved.learning_rate.decay_steps);
  config.set_effective("threads_per_rank", resolved.threads_per_rank);
  config.set_effective("device", to_string(resolved.device));
  config.set_effective("group", to_string(resolved.group));
  config.set_effective("attention", to_string(resolved.attention));
  if (resolved.trace) config.set_effective("trace", *resolved.trace);
}

}  // namespace tessera
