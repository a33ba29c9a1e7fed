#include "spelling.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/trainer/setting.h"

namespace tessera::cli {
namespace {

/// A flag of Accelerate, torchrun, DeepSpeed or a usual training script, and ours for it; of those
/// that name one thing in different commands, the one that the command has.
struct Habit {
  std::string_view theirs;
  std::string_view ours;
};

constexpr Habit kHabits[] = {
    {"--lr", "--learning-rate"},
    {"--min-lr", "--minimum-learning-rate"},
    {"--lr-scheduler-type", "--learning-rate-schedule"},
    {"--warmup", "--warmup-steps"},
    {"--num-warmup-steps", "--warmup-steps"},
    {"--max-steps", "--steps"},
    {"--max-train-steps", "--steps"},
    {"--max-iters", "--steps"},
    {"--batch-size", "--micro-batch"},
    {"--micro-batch-size", "--micro-batch"},
    {"--per-device-train-batch-size", "--micro-batch"},
    {"--gradient-accumulation-steps", "--accumulate"},
    {"--gradient-clipping", "--clip-norm"},
    {"--max-grad-norm", "--clip-norm"},
    {"--grad-clip", "--clip-norm"},
    {"--mixed-precision", "--precision"},
    {"--dtype", "--precision"},
    {"--gradient-checkpointing", "--recompute"},
    {"--seq-length", "--sequence-length"},
    {"--max-seq-length", "--sequence-length"},
    {"--block-size", "--context-length"},
    {"--n-layer", "--layers"},
    {"--n-head", "--heads"},
    {"--n-embd", "--width"},
    {"--dataset", "--data"},
    {"--logging-dir", "--tensorboard"},
    {"--cpu", "--device"},
    {"--use-cpu", "--device"},
    {"--debug", "--check-collectives"},
    {"--deepspeed-config", "--config"},
    {"--deepspeed-config-file", "--config"},
    {"--zero-stage", "--strategy"},
    {"--fsdp-sharding-strategy", "--strategy"},
    {"--fsdp-reshard-after-forward", "--reshard-after-forward"},
    {"--fsdp-auto-wrap-policy", "--wrap"},
    {"--fsdp-transformer-layer-cls-to-wrap", "--wrap"},
    {"--fsdp-min-num-params", "--wrap"},
    {"--fsdp-backward-prefetch", "--prefetch-backward"},
    {"--fsdp-forward-prefetch", "--prefetch-forward"},
    {"--fsdp-activation-checkpointing", "--recompute"},
    {"--parallelism-config-dp-replicate-size", "--replicas"},
    {"--dp-replicate-size", "--replicas"},
    {"--num-processes", "--processes"},
    {"--num-processes", "--ranks"},
    {"--nproc-per-node", "--processes"},
    {"--nproc-per-node", "--ranks"},
    {"--num-gpus", "--processes"},
    {"--num-gpus", "--ranks"},
    {"--num-machines", "--nodes"},
    {"--nnodes", "--nodes"},
    {"--machine-rank", "--node-rank"},
    {"--main-process-ip", "--main-address"},
    {"--master-addr", "--main-address"},
    {"--main-process-port", "--main-port"},
    {"--master-port", "--main-port"},
};

}  // namespace

std::vector<std::string> spelt_as_ours(std::vector<std::string> arguments) {
  const bool writes_config = arguments.size() > 1 && arguments[1] == "config";
  for (std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const auto end = argument.begin() +
                     static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
    std::replace(argument.begin(), end, '_', '-');
    constexpr std::string_view kTheirs = "--config-file";
    const bool is_theirs = std::string_view(argument).substr(0, argument.find('=')) == kTheirs;
    if (is_theirs && !writes_config) argument.replace(0, kTheirs.size(), "--config");
  }
  return arguments;
}

void refuse_flag(std::string_view word, const std::vector<std::string>& names) {
  word = word.substr(0, word.find('='));
  for (const Habit& habit : kHabits) {
    if (word == habit.theirs && std::ranges::find(names, habit.ours) != names.end()) {
      fail(ErrorCode::kConfig, "unknown flag '", word, "'; here it is '", habit.ours, "'");
    }
  }
  fail(ErrorCode::kConfig, unknown_name("flag", word, names));
}

}  // namespace tessera::cli
