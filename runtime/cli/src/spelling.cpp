#include "spelling.h"

#include <algorithm>

#include "aliases.h"
#include "tessera/core/error.h"
#include "tessera/trainer/setting.h"

namespace tessera::cli {
namespace {

/// Flags of Accelerate's launcher, of torchrun and of Transformers' Trainer that nothing here does:
/// the first beginning that fits counts.
struct Missing {
  std::string_view beginning;
  std::string_view why;
};

constexpr std::string_view kOtherParallelism =
    "a model is sharded and replicated (--strategy, --replicas), not split in other ways";
constexpr std::string_view kTpu = "TPUs are not supported";
constexpr std::string_view kOneMeeting =
    "processes meet where --main-address and --main-port of 'tessera launch' say";
constexpr std::string_view kOffload =
    "nothing is offloaded; shard more (--strategy full_shard), or recompute (--recompute)";
constexpr std::string_view kHosts =
    "start 'tessera launch' on each machine, with its --node-rank, or use mpirun or srun";
constexpr std::string_view kNotSaved = "parameters and state are not saved yet";
constexpr std::string_view kSteps = "say how many steps: --steps";
constexpr std::string_view kNoRestart = "a run that has failed is not started again";
constexpr std::string_view kOutput =
    "the output of all processes comes with their ranks in front; send it to a file";
constexpr std::string_view kNoPython =
    "what is launched is this program: 'tessera launch FLAGS -- train FLAGS'";
constexpr std::string_view kNoCompiler = "there is no Python code to compile";
constexpr std::string_view kSameStart = "all ranks compute the same first parameters from the seed";

constexpr Missing kMissing[] = {
    {"--multi-gpu", "each rank takes a GPU if there are GPUs; say how many ranks: --processes"},
    {"--use-fsdp", "say how to shard: --strategy, of which full_shard is the default"},
    {"--use-deepspeed", "say which stage: --strategy zero1, zero2 or zero3"},
    {"--use-parallelism-config", "say how many replicas: --replicas"},
    {"--parallelism-config-dp-shard-size", "say how many replicas: --replicas"},
    {"--fsdp-forward-prefetch", "say how far ahead: --prefetch-forward"},
    {"--report-to", "say where: --tensorboard FOLDER, --csv FILE or --log FILE"},
    {"--wandb", "numbers are written by --log, --csv and --tensorboard"},
    {"--fsdp-version", "there is one way of sharding, for both versions; see --strategy"},
    {"--fsdp-offload-params", kOffload},
    {"--fsdp-activation-checkpointing-offload", kOffload},
    {"--offload-", kOffload},
    {"--fsdp-state-dict-type", kNotSaved},
    {"--fsdp-use-orig-params", "parameters keep their names and shapes always"},
    {"--fsdp-cpu-ram-efficient-loading", "no weights are loaded from a checkpoint"},
    {"--fsdp-sync-module-states", kSameStart},
    {"--zero3-init-flag", "every rank makes only its own part of the parameters, always"},
    {"--zero3-save-16bit-model", kNotSaved},
    {"--deepspeed-moe-layer-cls-names", "there are no layers with experts"},
    {"--deepspeed-", kHosts},
    {"--mpirun-", "call mpirun yourself: 'mpirun --hostfile FILE tessera train FLAGS'"},
    {"--dynamo-", kNoCompiler},
    {"--fp8-", "computation is in fp32 or bf16 (--precision)"},
    {"--fp16", "computation in 16 bits is in bf16 (--precision)"},
    {"--num-train-epochs", kSteps},
    {"--epochs", kSteps},
    {"--warmup-ratio", "say how many steps: --warmup-steps"},
    {"--output-dir",
     "parameters are not saved yet; see --log, --csv and --tensorboard for numbers"},
    {"--save-", kNotSaved},
    {"--resume", kNotSaved},
    {"--overwrite-output-dir", kNotSaved},
    {"--torch-compile", kNoCompiler},
    {"--compile", kNoCompiler},
    {"--eval-", "there is no evaluation besides the training loss yet"},
    {"--logging-steps", "every step is logged: --log, --csv and --tensorboard"},
    {"--total-batch-size", "say its parts: --micro-batch, --accumulate and --ranks"},
    {"--use-megatron-lm", kOtherParallelism},
    {"--megatron-lm-", kOtherParallelism},
    {"--parallelism-config-", kOtherParallelism},
    {"--tpu", kTpu},
    {"--no-tpu-cluster", kTpu},
    {"--vm", kTpu},
    {"--env", kTpu},
    {"--downcast-bf16", kTpu},
    {"--aws-", "runs are not sent to Amazon SageMaker"},
    {"--enable-cpu-affinity", "processes are not bound to cores; numactl or taskset can do that"},
    {"--same-network", kOneMeeting},
    {"--rdzv-", kOneMeeting},
    {"--local-addr", kOneMeeting},
    {"--standalone", "a run on one machine needs no flag"},
    {"--max-restarts", kNoRestart},
    {"--monitor-interval", kNoRestart},
    {"--tee", kOutput},
    {"--log-dir", kOutput},
    {"--redirects", kOutput},
    {"--local-ranks-filter", kOutput},
    {"--role", "all processes do the same"},
    {"--no-python", kNoPython},
    {"--module", kNoPython},
    {"-m", kNoPython},
    {"--run-path", kNoPython},
    {"--main-training-function", kNoPython},
    {"--start-method", kNoPython},
    {"--library-name", "the models are this program's own presets"},
    {"--trust-remote-code", "the models are this program's own presets"},
};

/// Our flag for theirs among `names`; among all if there are none. Empty if it has no name here.
std::string_view ours_for(std::string_view theirs, const std::vector<std::string>& names) {
  for (const Alias& alias : aliases()) {
    const bool has = names.empty() || std::ranges::find(names, alias.ours) != names.end();
    if (theirs == alias.theirs && has) return alias.ours;
  }
  return "";
}

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
  for (const Missing& missing : kMissing) {
    require(!word.starts_with(missing.beginning), ErrorCode::kConfig, "'", word,
            "' has no counterpart: ", missing.why);
  }
  fail(ErrorCode::kConfig, unknown_name("flag", word, names));
}

}  // namespace tessera::cli
