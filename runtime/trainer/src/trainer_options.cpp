#include "tessera/trainer/trainer_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tessera/core/error.h"
#include "tessera/core/usable_cores.h"
#include "tessera/kernels/optimizer.h"

namespace tessera {
namespace {

void check_at_least(std::string_view name, std::int64_t value, std::int64_t minimum) {
  require(value >= minimum, ErrorCode::kConfig, name, " is ", value, "; it must be at least ",
          minimum);
}

void check_float_dtype(std::string_view name, DType dtype) {
  require(dtype == DType::kFloat32 || dtype == DType::kBFloat16, ErrorCode::kConfig, name, " is ",
          to_string(dtype), "; it may be fp32 or bf16");
}

void check_optimizer(const OptimizerOptions& optimizer) {
  const auto check = [](std::string_view name, double value, bool allowed, std::string_view range) {
    require(allowed && std::isfinite(value), ErrorCode::kConfig, name, " is ", value,
            "; it must be ", range);
  };
  hyperparameter_values(optimizer);  // throws what is wrong with them
  const double decay = optimizer.weight_decay.value_or(0.0F);
  check("weight_decay", decay, decay >= 0, "at least 0");
  check("clip_norm", optimizer.clip_norm, optimizer.clip_norm >= 0, "at least 0; 0 clips never");
}

/// Every hyperparameter that the optimizer takes, and its weight decay.
void fill_in(OptimizerOptions& options) {
  const Optimizer& optimizer = find_optimizer(options.name);
  const std::vector<double> values = hyperparameter_values(options);
  for (std::size_t i = 0; i < values.size(); ++i) {
    options.hyperparameters[std::string(optimizer.hyperparameters[i].name)] = values[i];
  }
  if (!options.weight_decay) options.weight_decay = static_cast<float>(optimizer.weight_decay);
}

void check_rounding(const TrainerOptions& options) {
  require(!options.optimizer.stochastic_rounding || options.precision == DType::kBFloat16,
          ErrorCode::kConfig,
          "stochastic_rounding is true, but parameters of fp32 are not rounded; use --precision "
          "bf16, or leave --stochastic-rounding out");
}

/// Backward writes gradients in the dtype that they are reduced in, and products of fp32 are fp32.
void check_reduction(const TrainerOptions& options) {
  check_float_dtype("reduce_dtype", options.reduce_dtype);
  require(options.reduce_dtype == DType::kFloat32 || options.precision == DType::kBFloat16,
          ErrorCode::kConfig,
          "reduce_dtype is bf16, but with precision fp32 gradients are written and sent in fp32; "
          "use --precision bf16, or leave --reduce-dtype out");
}

void check_attention(const TrainerOptions& options) {
  if (options.attention != AttentionBackend::kCudnn) return;
  require(options.device != DeviceChoice::kCpu, ErrorCode::kConfig,
          "attention is cudnn, but the ranks run on the CPU, which has its own only; leave "
          "--attention out, or use --device cuda");
  require(options.precision == DType::kBFloat16, ErrorCode::kConfig,
          "attention is cudnn, which takes bf16 only; use --precision bf16, or --attention auto");
}

}  // namespace

int default_threads_per_rank(int ranks) { return std::max(1, usable_cores() / std::max(1, ranks)); }

int ranks_on_host(const TrainerOptions& options) {
  return options.world == nullptr ? options.ranks : options.world->ranks_on_host();
}

TrainerOptions resolved(TrainerOptions options) {
  check_at_least("ranks", options.ranks, 1);
  require(options.world == nullptr || options.world->size() == options.ranks, ErrorCode::kConfig,
          "ranks is ", options.ranks, ", but the ", options.world ? options.world->processes() : 0,
          " processes of the run have ", options.world ? options.world->size() : 0);
  check_at_least("replicas", options.replicas, 0);
  check_at_least("steps", options.steps, 1);
  check_at_least("micro_batch", options.micro_batch, 1);
  check_at_least("accumulate", options.accumulate, 1);
  require(options.accumulate <= kMaxAccumulate, ErrorCode::kConfig, "accumulate is ",
          options.accumulate, "; it must be at most ", kMaxAccumulate);
  check_at_least("prefetch_forward", options.prefetch_forward, 0);
  check_at_least("prefetch_backward", options.prefetch_backward, 0);
  check_at_least("threads_per_rank", options.threads_per_rank, 0);
  check_at_least("memory_limit", options.memory_limit_bytes, 0);
  check_at_least("timeout", options.timeout.count(), 1);
  check_float_dtype("precision", options.precision);
  check_reduction(options);
  check_attention(options);
  check_optimizer(options.optimizer);
  fill_in(options.optimizer);
  check_rounding(options);
  if (options.learning_rate.total_steps == 1) options.learning_rate.total_steps = options.steps;
  check(options.learning_rate);
  options.learning_rate = resolved(options.learning_rate);

  const Strategy& strategy = find_strategy(options.strategy);
  options.strategy = strategy.name;
  const bool own_placement = options.placement.has_value();
  if (!own_placement) options.placement = strategy.placement;
  check(*options.placement);
  if (!options.reshard_after_forward) {
    options.reshard_after_forward = strategy.reshard_after_forward;
  }
  const int replicas =
      options.replicas > 0 ? options.replicas : default_replicas(strategy, options.ranks);
  options.replicas = make_mesh(options.ranks, replicas).replicate;
  if (options.threads_per_rank == 0) {
    options.threads_per_rank = default_threads_per_rank(ranks_on_host(options));
  }
  return options;
}

std::string strategy_note(const TrainerOptions& resolved) {
  const Strategy& strategy = find_strategy(resolved.strategy);
  if (resolved.placement != strategy.placement) return "";
  return strategy_note(strategy, make_mesh(resolved.ranks, resolved.replicas));
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
