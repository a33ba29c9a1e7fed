#include "tessera/compat/aliases.h"

#include <algorithm>
#include <array>
#include <utility>

#include "document.h"
#include "megatron_layout.h"
#include "optimizer_names.h"
#include "tessera/core/error.h"
#include "tessera/core/text.h"
#include "tessera/trainer/setting.h"

namespace tessera {
namespace {

bool is_true(const std::string& text) {
  const auto flag = compat::as_flag({.text = text});
  require(flag.has_value(), ErrorCode::kConfig, "'", text, "' is not true or false");
  return *flag;
}

/// The second of the pair whose first is `text`; `text` itself if there is none, of which the
/// setting knows what is wrong.
template <std::size_t kPairs>
std::string translated(
    const std::string& text,
    const std::array<std::pair<std::string_view, std::string_view>, kPairs>& pairs) {
  const std::string word = lowercase(text);
  for (const auto& [theirs, ours] : pairs) {
    if (word == theirs) return std::string(ours);
  }
  return text;
}

// ---- Values -------------------------------------------------------------------------------------

using Pair = std::pair<std::string_view, std::string_view>;

std::string precision(const std::string& text) {
  return translated(
      text, std::array{Pair{"no", "fp32"}, Pair{"float32", "fp32"}, Pair{"float", "fp32"},
                       Pair{"bfloat16", "bf16"}, Pair{"float16", "fp16"}, Pair{"half", "fp16"}});
}
std::string fp16(const std::string& text) { return is_true(text) ? "fp16" : "fp32"; }
std::string bf16(const std::string& text) { return is_true(text) ? "bf16" : "fp32"; }
std::string recompute(const std::string& text) { return is_true(text) ? "full" : "none"; }
std::string selective(const std::string& text) { return is_true(text) ? "selective" : "none"; }
std::string negated(const std::string& text) { return is_true(text) ? "false" : "true"; }
std::string cpu(const std::string& text) { return is_true(text) ? "cpu" : "auto"; }

std::string history_rule(const std::string& text) {
  return translated(text, std::array{Pair{"most_recent", "most-recent"}});
}

std::string bind_to_nodes(const std::string& text) { return is_true(text) ? "numa" : "auto"; }
std::string bind_to_cores(const std::string& text) { return is_true(text) ? "cores" : "auto"; }

std::string offload_device(const std::string& text) {
  return translated(text, std::array{Pair{"cpu", "host"}, Pair{"nvme", "disk"}});
}

std::string zero_stage(const std::string& text) {
  return translated(text, std::array{Pair{"0", "no_shard"}, Pair{"1", "zero1"}, Pair{"2", "zero2"},
                                     Pair{"3", "full_shard"}});
}

/// Megatron-LM's distributed optimizer.
std::string sharded_optimizer(const std::string& text) {
  return is_true(text) ? "zero1" : "no_shard";
}
std::string on_host(const std::string& text) { return is_true(text) ? "host" : "none"; }

/// PyTorch's names, which torchtitan has, too.
std::string pipeline_schedule(const std::string& text) {
  const std::string word = lowercase(text);
  for (const char* listed : {"dualpipev", "loopedbfs"}) {
    require(word != listed, ErrorCode::kConfig, "there is no schedule '", text,
            "'; --pipeline-schedule FILE.csv takes one from PyTorch's form compute_only");
  }
  return translated(text, std::array{Pair{"1f1b", "1f1b"}, Pair{"interleaved1f1b", "interleaved"},
                                     Pair{"gpipe", "gpipe"}, Pair{"interleavedzerobubble", "zb-h1"},
                                     Pair{"zbvzerobubble", "zb-v"}});
}

std::string sharding_strategy(const std::string& text) {
  return translated(
      text, std::array{Pair{"1", "full_shard"}, Pair{"2", "shard_grad_op"}, Pair{"3", "no_shard"},
                       Pair{"4", "hybrid_shard"}, Pair{"5", "hybrid_shard_zero2"}});
}

/// Transformers' Trainer says "full_shard auto_wrap"; layers are wrapped here unless --wrap says
/// otherwise.
std::string trainer_fsdp(const std::string& text) {
  constexpr std::string_view kAutoWrap = " auto_wrap";
  return text.ends_with(kAutoWrap) ? text.substr(0, text.size() - kAutoWrap.size()) : text;
}

std::string learning_rate_schedule(const std::string& text) {
  return translated(text, std::array{Pair{"constant_with_warmup", "constant"},
                                     Pair{"warmup_stable_decay", "wsd"}});
}

std::string wrap_policy(const std::string& text) {
  require(lowercase(text) != "size_based_wrap", ErrorCode::kConfig,
          "SIZE_BASED_WRAP is --wrap size:N here, with the least number of parameters; give that");
  return translated(text,
                    std::array{Pair{"transformer_based_wrap", "layer"}, Pair{"no_wrap", "none"}});
}
/// Whatever the layers of their model are called, those of ours are wrapped.
std::string wrap_layers(const std::string& /*names*/) { return "layer"; }
std::string wrap_size(const std::string& text) { return "size:" + text; }

std::string backward_prefetch(const std::string& text) {
  return translated(text, std::array{Pair{"backward_pre", "1"}, Pair{"backward_post", "0"},
                                     Pair{"no_prefetch", "0"}});
}

std::string forward_prefetch(const std::string& text) { return is_true(text) ? "1" : "0"; }

/// FSDP 1 numbers its types. Its local one is each rank's own part, too.
std::string state_dict_type(const std::string& text) {
  return translated(text, std::array{Pair{"full_state_dict", "full"}, Pair{"1", "full"},
                                     Pair{"sharded_state_dict", "sharded"}, Pair{"3", "sharded"},
                                     Pair{"local_state_dict", "sharded"}, Pair{"2", "sharded"}});
}
std::string whole_model(const std::string& text) { return is_true(text) ? "full" : "sharded"; }

// ---- The table ----------------------------------------------------------------------------------

constexpr Alias kAliases[] = {
    // The processes.
    {"--num-processes", "--ranks"},  // `launch` has a flag of that name, of all machines
    {"--world-size", "--ranks"},
    {"--world-size", "--num-processes"},
    {"--nproc-per-node", "--processes"},
    {"--nproc-per-node", "--ranks"},
    {"--num-gpus", "--processes"},
    {"--num-gpus", "--ranks"},
    {"--nnodes", "--nodes"},
    {"--num-nodes", "--nodes"},
    {"--num-machines", "--nodes"},
    {"--machine-rank", "--node-rank"},
    {"--main-process-ip", "--main-address"},
    {"--master-addr", "--main-address"},
    {"--main-process-port", "--main-port"},
    {"--master-port", "--main-port"},
    {"--num-cpu-threads-per-process", "--threads-per-rank"},
    {"--threads", "--threads-per-rank"},
    {"--ddp-timeout", "--timeout"},
    {"--cpu", "--device", cpu, true},
    {"--use-cpu", "--device", cpu, true},
    {"--debug", "--check-collectives", nullptr, true},
    {"--enable-cpu-affinity", "--bind", bind_to_nodes, true},
    {"--bind-cores-to-rank", "--bind", bind_to_cores, true},
    {"--deepspeed", "--config"},
    {"--deepspeed-config", "--config"},
    {"--deepspeed-config-file", "--config"},

    // The step.
    {"--max-steps", "--steps"},
    {"--max-train-steps", "--steps"},
    {"--num-train-steps", "--steps"},
    {"--total-steps", "--steps"},
    {"--num-steps", "--steps"},
    {"--max-iters", "--steps"},
    {"--train-iters", "--steps"},
    {"--num-iterations", "--steps"},
    {"-x", "--steps"},
    {"--num-train-epochs", "--epochs"},
    {"--batch-size", "--micro-batch"},
    {"--micro-batch-size", "--micro-batch"},
    {"--per-device-train-batch-size", "--micro-batch"},
    {"--train-micro-batch-size-per-gpu", "--micro-batch"},
    {"--device-batch-size", "--micro-batch"},
    {"-b", "--micro-batch"},
    {"--gradient-accumulation-steps", "--accumulate"},
    {"--grad-accum-steps", "--accumulate"},
    {"--accumulation-steps", "--accumulate"},
    {"--num-micro-batches", "--accumulate"},
    {"--megatron-lm-num-micro-batches", "--accumulate"},
    {"--auto-find-batch-size", "--auto-batch", nullptr, true},
    {"--gradient-checkpointing", "--recompute", recompute, true},
    {"--activation-checkpointing", "--recompute", recompute, true},
    {"--recompute-granularity", "--recompute"},
    {"--recompute-activations", "--recompute", selective, true},
    {"--megatron-lm-recompute-activations", "--recompute", selective},
    {"--megatron-lm-recompute-granularity", "--recompute"},
    {"--mixed-precision", "--precision", precision},
    {"--dtype", "--precision", precision},
    {"--bf16", "--precision", bf16, true},
    {"--fp16", "--precision", fp16, true},

    {"--fp8-amax-history-len", "--fp8-history"},
    {"--fp8-amax-compute-algo", "--fp8-history-rule", history_rule},
    {"--initial-loss-scale", "--loss-scale-initial"},
    {"--min-loss-scale", "--loss-scale-minimum"},
    {"--hysteresis", "--loss-scale-hysteresis"},

    // Checkpoints.
    {"--save-steps", "--save-every"},
    {"--save-interval", "--save-every"},
    {"--checkpointing-steps", "--save-every"},
    {"--total-limit", "--save-total-limit"},
    {"--checkpoints-total-limit", "--save-total-limit"},
    {"--fsdp-state-dict-type", "--state-dict-type", state_dict_type},
    {"--zero3-save-16bit-model", "--state-dict-type", whole_model, true},
    {"--resume-from-checkpoint", "--resume"},
    {"--load", "--resume"},
    {"--checkpoint", "--init"},
    {"--init-from", "--init"},

    // Generation.
    {"--max-new-tokens", "--tokens"},
    {"--use-cache", "--cache", nullptr, true},
    {"--no-cache", "--cache", negated, true},
    {"--system-prompt", "--system"},

    // Evaluation.
    {"--eval-steps", "--eval-every"},
    {"--eval-interval", "--eval-every"},
    {"--load-best-model-at-end", "--save-best", nullptr, true},
    {"--early-stopping-patience", "--patience"},
    {"--early-stopping-threshold", "--min-improvement"},

    // The optimizer.
    {"--optim", "--optimizer", compat::optimizer_name, false, compat::optimizer_note},
    {"--lr-group", "--learning-rate-groups"},
    {"--lr", "--learning-rate"},
    {"--min-lr", "--minimum-learning-rate"},
    {"--lr-scheduler-type", "--learning-rate-schedule", learning_rate_schedule},
    {"--lr-decay-style", "--learning-rate-schedule", learning_rate_schedule},
    {"--lr-scheduler", "--learning-rate-schedule", learning_rate_schedule},
    {"--warmup", "--warmup-steps"},
    {"--lr-warmup-steps", "--warmup-steps"},
    {"--warmup-iters", "--warmup-steps"},
    {"--lr-warmup-iters", "--warmup-steps"},
    {"--num-warmup-steps", "--warmup-steps"},
    {"--adam-beta1", "--beta1"},
    {"--wd", "--weight-decay"},
    {"--adam-beta2", "--beta2"},
    {"--adam-eps", "--epsilon"},
    {"--adam-epsilon", "--epsilon"},
    {"--max-grad-norm", "--clip-norm"},
    {"--clip-grad-norm", "--clip-norm"},
    {"--gradient-clipping", "--clip-norm"},
    {"--grad-clip", "--clip-norm"},
    {"--clip-grad", "--clip-norm"},
    {"--megatron-lm-gradient-clipping", "--clip-norm"},

    // The model, the data and what is written.
    {"--model-name-or-path", "--model"},
    {"--model-name", "--model"},
    {"--n-layer", "--layers"},
    {"--num-layers", "--layers"},
    {"--num-hidden-layers", "--layers"},
    {"--n-head", "--heads"},
    {"--num-attention-heads", "--heads"},
    {"--num-heads", "--heads"},
    {"--n-embd", "--width"},
    {"--hidden-size", "--width"},
    {"--d-model", "--width"},
    {"--block-size", "--context-length"},
    {"--n-ctx", "--context-length"},
    {"--max-position-embeddings", "--context-length"},
    {"--seq-length", "--sequence-length"},
    {"--seq-len", "--sequence-length"},
    {"--max-seq-length", "--sequence-length"},
    {"--dataset", "--data"},
    {"--dataset-name", "--data"},
    {"--train-file", "--data"},
    {"--data-path", "--data"},
    {"--data-dir", "--data"},
    {"--train-data", "--data"},
    {"-i", "--data"},
    {"--logging-dir", "--tensorboard"},

    // Sharding.
    {"--zero-stage", "--strategy", zero_stage},
    {"-z", "--strategy", zero_stage},
    {"--fsdp", "--strategy", trainer_fsdp},
    {"--fsdp-sharding-strategy", "--strategy", sharding_strategy},
    {"--fsdp-reshard-after-forward", "--reshard-after-forward"},
    {"--fsdp-auto-wrap-policy", "--wrap", wrap_policy},
    {"--fsdp-transformer-layer-cls-to-wrap", "--wrap", wrap_layers},
    {"--fsdp-min-num-params", "--wrap", wrap_size},
    {"--fsdp-backward-prefetch", "--prefetch-backward", backward_prefetch},
    {"--fsdp-forward-prefetch", "--prefetch-forward", forward_prefetch, true},
    {"--fsdp-activation-checkpointing", "--recompute", recompute, true},
    {"--offload-optimizer-device", "--offload-optimizer", offload_device},
    {"--offload-optimizer-nvme-path", "--offload-path"},
    {"--offload-param-device", "--offload-parameters", offload_device},
    {"--offload-param-nvme-path", "--offload-path"},
    {"--parallelism-config-dp-replicate-size", "--replicas"},
    {"--dp-replicate-size", "--replicas"},
    {"--parallelism.data-parallel-replicate-degree", "--replicas"},
    {"--use-distributed-optimizer", "--strategy", sharded_optimizer, true},
    {"--megatron-lm-use-distributed-optimizer", "--strategy", sharded_optimizer},
    {"--optimizer-cpu-offload", "--offload-optimizer", on_host, true},
    {"--megatron-lm-optimizer-cpu-offload", "--offload-optimizer", on_host},

    // Pipelines.
    {"--pipeline-model-parallel-size", "--pipeline"},
    {"--pipeline-parallel-size", "--pipeline"},
    {"--pp-size", "--pipeline"},
    {"--megatron-lm-pp-degree", "--pipeline"},
    {"--parallelism-config-pp-size", "--pipeline"},
    {"--parallelism.pipeline-parallel-degree", "--pipeline"},
    {"--pipeline-parallel-schedule", "--pipeline-schedule", pipeline_schedule},
    {"--parallelism.pipeline-parallel-schedule", "--pipeline-schedule", pipeline_schedule},
    {"--parallelism.pipeline-parallel-schedule-csv", "--pipeline-schedule"},
    {"--parallelism.pipeline-parallel-microbatch-size", "--micro-batch"},
    {"--num-virtual-stages-per-pipeline-rank", "--virtual-stages"},
    {"--num-layers-per-virtual-pipeline-stage", "--layers-per-virtual-stage"},
    {"--decoder-first-pipeline-num-layers", "--first-rank-layers"},
    {"--decoder-last-pipeline-num-layers", "--last-rank-layers"},
    {"--megatron-lm-decoder-last-pipeline-num-layers", "--last-rank-layers"},
    {"--pipeline-model-parallel-layout", "--pipeline-split", compat::split_of_layout},
};

/// Our flag for theirs among `names`; among all if there are none. Empty if it has no name here.
std::string_view ours_for(std::string_view theirs, const std::vector<std::string>& names) {
  for (const Alias& alias : std::span(kAliases)) {
    const bool has = names.empty() || std::ranges::find(names, alias.ours) != names.end();
    if (theirs == alias.theirs && has) return alias.ours;
  }
  return "";
}

}  // namespace

std::span<const Alias> aliases() { return kAliases; }

std::vector<std::string> spelt_as_ours(std::vector<std::string> arguments) {
  const bool writes_config = arguments.size() > 1 && arguments[1] == "config";
  for (std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    if (argument.starts_with("--benchmark_")) continue;  // Google Benchmark's, which takes no other
    const auto end = argument.begin() +
                     static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
    std::replace(argument.begin(), end, '_', '-');
    constexpr std::string_view kTheirs = "--config-file";
    const bool is_theirs = std::string_view(argument).substr(0, argument.find('=')) == kTheirs;
    if (is_theirs && !writes_config) argument.replace(0, kTheirs.size(), "--config");
  }
  return arguments;
}

void refuse_flag(std::string_view word, const std::vector<std::string>& names,
                 const FollowingCommand& following) {
  word = word.substr(0, word.find('='));
  const std::string_view behind = ours_for(word, following.flags);
  require(following.flags.empty() || behind.empty(), ErrorCode::kConfig, "unknown flag '", word,
          "'; here it is '", behind, "', behind '", following.name, "'");
  const bool too_early = std::ranges::find(following.flags, word) != following.flags.end();
  require(!too_early, ErrorCode::kConfig, "unknown flag '", word, "'; it belongs behind '",
          following.name, "'");
  const std::string_view elsewhere = ours_for(word, {});
  require(elsewhere.empty(), ErrorCode::kConfig, "'", word, "' is '", elsewhere,
          "' here, which this command does not have; 'tessera --help' lists the others");
  for (const FlagWithoutCounterpart& missing : flags_without_counterpart()) {
    require(!word.starts_with(missing.beginning), ErrorCode::kConfig, "'", word,
            "' has no counterpart: ", missing.why);
  }
  fail(ErrorCode::kConfig, unknown_name("flag", word, names));
}

std::string about_foreign_command(const std::string& word) {
  struct Row {
    const char* name;
    const char* answer;
  };
  constexpr std::array kRows{
      Row{"merge_weights",
          "a checkpoint's parameters are written as one Hugging Face folder with 'tessera "
          "checkpoint convert CHECKPOINT FOLDER'"},
      Row{"to_fsdp2",
          "there is nothing to convert: files of FSDP 1 and 2 are both read; 'tessera explain "
          "FILE' "
          "says what each key means here"},
      Row{"tpu_config", "TPUs are not supported; CPUs and NVIDIA GPUs are"},
  };
  for (const Row& row : kRows) {
    if (setting_name(word) == row.name) return concat("'", word, "': ", row.answer);
  }
  return "";
}

}  // namespace tessera
