#include "aliases.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_true(const std::string& text) {
  const std::string word = lower(text);
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "no", "off", "0"}) {
    if (word == no) return false;
  }
  fail(ErrorCode::kConfig, "'", text, "' is not true or false");
}

/// The second of the pair whose first is `text`; `text` itself if there is none, of which the
/// setting knows what is wrong.
template <std::size_t kPairs>
std::string translated(
    const std::string& text,
    const std::array<std::pair<std::string_view, std::string_view>, kPairs>& pairs) {
  const std::string word = lower(text);
  for (const auto& [theirs, ours] : pairs) {
    if (word == theirs) return std::string(ours);
  }
  return text;
}

// ---- Values -------------------------------------------------------------------------------------

using Pair = std::pair<std::string_view, std::string_view>;

std::string precision(const std::string& text) {
  return translated(text, std::array{Pair{"no", "fp32"}, Pair{"float32", "fp32"},
                                     Pair{"float", "fp32"}, Pair{"bfloat16", "bf16"}});
}
std::string bf16(const std::string& text) { return is_true(text) ? "bf16" : "fp32"; }
std::string recompute(const std::string& text) { return is_true(text) ? "full" : "none"; }
std::string cpu(const std::string& text) { return is_true(text) ? "cpu" : "auto"; }

std::string zero_stage(const std::string& text) {
  return translated(text, std::array{Pair{"0", "no_shard"}, Pair{"1", "zero1"}, Pair{"2", "zero2"},
                                     Pair{"3", "full_shard"}});
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
  require(lower(text) != "size_based_wrap", ErrorCode::kConfig,
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
    {"--ddp-timeout", "--timeout"},
    {"--cpu", "--device", cpu, true},
    {"--use-cpu", "--device", cpu, true},
    {"--debug", "--check-collectives", nullptr, true},
    {"--deepspeed", "--config"},
    {"--deepspeed-config", "--config"},
    {"--deepspeed-config-file", "--config"},

    // The step.
    {"--max-steps", "--steps"},
    {"--max-train-steps", "--steps"},
    {"--max-iters", "--steps"},
    {"--train-iters", "--steps"},
    {"--num-iterations", "--steps"},
    {"-x", "--steps"},
    {"--batch-size", "--micro-batch"},
    {"--micro-batch-size", "--micro-batch"},
    {"--per-device-train-batch-size", "--micro-batch"},
    {"-b", "--micro-batch"},
    {"--gradient-accumulation-steps", "--accumulate"},
    {"--grad-accum-steps", "--accumulate"},
    {"--auto-find-batch-size", "--auto-batch", nullptr, true},
    {"--gradient-checkpointing", "--recompute", recompute, true},
    {"--mixed-precision", "--precision", precision},
    {"--dtype", "--precision", precision},
    {"--bf16", "--precision", bf16, true},

    // The optimizer.
    {"--lr", "--learning-rate"},
    {"--min-lr", "--minimum-learning-rate"},
    {"--lr-scheduler-type", "--learning-rate-schedule", learning_rate_schedule},
    {"--lr-decay-style", "--learning-rate-schedule", learning_rate_schedule},
    {"--warmup", "--warmup-steps"},
    {"--warmup-iters", "--warmup-steps"},
    {"--lr-warmup-iters", "--warmup-steps"},
    {"--num-warmup-steps", "--warmup-steps"},
    {"--adam-beta1", "--beta1"},
    {"--adam-beta2", "--beta2"},
    {"--adam-eps", "--epsilon"},
    {"--adam-epsilon", "--epsilon"},
    {"--max-grad-norm", "--clip-norm"},
    {"--gradient-clipping", "--clip-norm"},
    {"--grad-clip", "--clip-norm"},
    {"--clip-grad", "--clip-norm"},

    // The model, the data and what is written.
    {"--model-name-or-path", "--model"},
    {"--model-name", "--model"},
    {"--n-layer", "--layers"},
    {"--num-layers", "--layers"},
    {"--n-head", "--heads"},
    {"--num-attention-heads", "--heads"},
    {"--n-embd", "--width"},
    {"--hidden-size", "--width"},
    {"--block-size", "--context-length"},
    {"--seq-length", "--sequence-length"},
    {"--max-seq-length", "--sequence-length"},
    {"--dataset", "--data"},
    {"--dataset-name", "--data"},
    {"--train-file", "--data"},
    {"--data-path", "--data"},
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
    {"--fsdp-activation-checkpointing", "--recompute", recompute, true},
    {"--parallelism-config-dp-replicate-size", "--replicas"},
    {"--dp-replicate-size", "--replicas"},
};

void add_alias(CLI::App& command, const Alias& alias, CLI::Option* ours) {
  const auto forward = [alias, ours](const CLI::results_t& given) {
    require(given.size() < 2, ErrorCode::kConfig, alias.theirs, " is given ", given.size(),
            " times; give it once");
    const bool bare = given.empty() || given.front().empty();
    require(!bare || alias.may_be_bare, ErrorCode::kConfig, alias.theirs, " needs a value");
    std::string text = bare ? "true" : given.front();
    try {
      if (alias.value != nullptr) text = alias.value(text);
    } catch (const Error& error) {
      fail(error.code(), alias.theirs, ": ", error.what());
    }
    if (ours->count() > 0) {
      require(ours->results().back() == text, ErrorCode::kConfig, alias.theirs, " is ", alias.ours,
              " here, which another flag gives otherwise; give one of them");
      return true;
    }
    ours->add_result(text);
    ours->run_callback();
    return true;
  };
  CLI::Option* option = command.add_option(std::string(alias.theirs), forward);
  // Of a flag that is not shown CLI11 could not say by name that its value is missing.
  option->expected(0, 1);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->group("");
}

}  // namespace

std::span<const Alias> aliases() { return kAliases; }

void accept_aliases(CLI::App& command) {
  for (const Alias& alias : kAliases) {
    if (command.get_option_no_throw(std::string(alias.theirs)) != nullptr) continue;
    CLI::Option* ours = command.get_option_no_throw(std::string(alias.ours));
    if (ours != nullptr) add_alias(command, alias, ours);
  }
}

std::vector<std::string> shown_flags(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_group().empty()) names.push_back(option->get_name());
  }
  return names;
}

}  // namespace tessera::cli
