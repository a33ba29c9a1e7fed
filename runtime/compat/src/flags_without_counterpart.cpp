#include <algorithm>
#include <iterator>

#include "tessera/compat/aliases.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::string_view kOtherParallelism =
    "a model is sharded, replicated and divided into stages (--strategy, --replicas, --pipeline), "
    "not split in other ways";
constexpr std::string_view kLayersOfStages =
    "say how many layers each stage has, embedding and head among them: --pipeline-split 4,5,2; "
    "without it stages take equal times";
constexpr std::string_view kCounted = "the embedding and the head are layers of stages, always";
constexpr std::string_view kOverlaps = "communication overlaps computation, always";
constexpr std::string_view kSizes =
    "say its parts: it is --micro-batch x --accumulate x --ranks / --pipeline";
constexpr std::string_view kTpu = "TPUs are not supported";
constexpr std::string_view kOneMeeting =
    "processes meet where --main-address and --main-port of 'tessera launch' say";
constexpr std::string_view kOffload =
    "say what the host's memory keeps: --offload-parameters host, --offload-optimizer host";
constexpr std::string_view kRecompute = "say so: --recompute full --offload-activations host";
constexpr std::string_view kHosts =
    "start 'tessera launch' on each machine, with its --node-rank, or use mpirun or srun";
constexpr std::string_view kNodes =
    "say how many ranks there are: --ranks; on several machines 'tessera launch --nodes N' starts "
    "them";
constexpr std::string_view kNoMonitor = "a process that ends is known at once";
constexpr std::string_view kOutput =
    "the output of all processes comes with their ranks in front; send it to a file";
constexpr std::string_view kNoPython =
    "what is launched is this program: 'tessera launch FLAGS -- train FLAGS'";
constexpr std::string_view kNoCompiler = "there is no Python code to compile";
constexpr std::string_view kTracker =
    "metrics go to files, --tensorboard FOLDER, --csv FILE or --log FILE, and `python -m "
    "tessera.track --to wandb FILE`, or --to mlflow, sends the last one's to a tracker";
constexpr std::string_view kSameStart = "all ranks compute the same first parameters from the seed";

constexpr FlagWithoutCounterpart kMissing[] = {
    {"--multi-gpu", "each rank takes a GPU if there are GPUs; say how many ranks: --processes",
     true},
    {"--use-fsdp", "say how to shard: --strategy, of which full_shard is the default", true},
    {"--use-deepspeed", "say which stage: --strategy zero1, zero2 or zero3", true},
    {"--use-parallelism-config", "say how many replicas: --replicas", true},
    {"--parallelism-config-dp-shard-size", "say how many replicas: --replicas"},
    {"--report-to", kTracker, true},
    {"--log-with", kTracker, true},
    {"--wandb", kTracker, true},
    {"--fsdp-version", "there is one way of sharding, for both versions; see --strategy", true},
    {"--fsdp-offload-params", kOffload},
    {"--fsdp-activation-checkpointing-offload", kRecompute},
    {"--offload-", kOffload},
    {"--fsdp-use-orig-params", "parameters keep their names and shapes always", true},
    {"--fsdp-cpu-ram-efficient-loading", "every rank reads only its own part, always", true},
    {"--fsdp-sync-module-states", kSameStart, true},
    {"--zero3-init-flag", "every rank makes only its own part of the parameters, always", true},
    {"--deepspeed-moe-layer-cls-names", "there are no layers with experts"},
    {"--deepspeed-", kHosts},
    {"--mpirun-", "call mpirun yourself: 'mpirun --hostfile FILE tessera train FLAGS'"},
    {"--dynamo-", kNoCompiler, true},
    {"--fp8-backend", "say --precision fp8, and --fp8-recipe delayed for TransformerEngine's",
     true},
    {"--fp8-pad-inner-dim", "matrices of any size are multiplied", true},
    {"--fp8-interval", "scales are made anew in each step, or each time that a tensor is rounded",
     true},
    {"--fp8-enable-fsdp-float8-all-gather",
     "matrices are gathered as codes, as --gather-format says", true},
    {"--fp8-", "what there is of fp8 is in --precision fp8 and the --fp8 flags of --help"},
    {"--fp16-", "what there is of fp16 is in --precision fp16 and --loss-scale"},
    {"--metric-for-best-model", "the best checkpoint is that of the lowest evaluation loss", true},
    {"--greater-is-better", "the best checkpoint is that of the lowest evaluation loss", true},
    {"--warmup-ratio", "say how many steps: --warmup-steps"},
    {"--output-dir",
     "say where each output goes: --save, --export, --log, --csv and --tensorboard"},
    {"--save-", "say how often: --save-every N, and how many are kept: --save-total-limit"},
    {"--project-dir",
     "checkpoints are in the folder of --save, step_N each; logs are where --tensorboard says"},
    {"--automatic-checkpoint-naming", "checkpoints are named by their step, always", true},
    {"--load-universal", "every checkpoint can be resumed by any number of ranks: --resume"},
    {"--universal-checkpoint", "every checkpoint can be resumed by any number of ranks: --resume"},
    {"--overwrite-output-dir", "checkpoints of another run are not overwritten"},
    {"--torch-compile", kNoCompiler, true},
    {"--compile", kNoCompiler, true},
    {"--eval-", "say what to evaluate on, and how often: --eval-data and --eval-every"},
    {"--log-interval", "every step is logged: --log, --csv and --tensorboard", true},
    {"--logging-steps", "every step is logged: --log, --csv and --tensorboard", true},
    {"--total-batch-size", kSizes},
    {"--global-batch-size", kSizes},
    {"--use-megatron-lm", "say how the model is divided: --pipeline, --strategy", true},
    {"--parallelism.pipeline-parallel-layers-per-stage", kLayersOfStages},
    {"--parallelism.module-fqns-per-model-part", kLayersOfStages},
    {"--account-for-embedding-in-pipeline-split", kCounted, true},
    {"--account-for-loss-in-pipeline-split", kCounted, true},
    {"--microbatch-group-size-per-virtual-pipeline-stage",
     "groups have as many micro-steps as there are pipeline ranks; leave it out, or list passes in "
     "a file: --pipeline-schedule FILE.csv"},
    {"--overlap-p2p-communication", kOverlaps, true},
    {"--no-overlap-p2p-communication", kOverlaps, true},
    {"--overlap-grad-reduce", kOverlaps, true},
    {"--overlap-param-gather", kOverlaps, true},
    {"--tensor-parallel", kOtherParallelism, false, "1"},
    {"--tensor-model-parallel", kOtherParallelism, false, "1"},
    {"--tp-", kOtherParallelism, false, "1"},
    {"--pipeline-parallel", "say how many pipeline ranks there are: --pipeline"},
    {"--pipeline-model-parallel", "say how many pipeline ranks there are: --pipeline"},
    {"--pp-", "say how many pipeline ranks there are: --pipeline"},
    {"--context-parallel", kOtherParallelism, false, "1"},
    {"--cp-size", kOtherParallelism, false, "1"},
    {"--sequence-parallel", kOtherParallelism},
    {"--expert-parallel", kOtherParallelism, false, "1"},
    {"--expert-model-parallel", kOtherParallelism, false, "1"},
    {"--expert-tensor-parallel", kOtherParallelism, false, "1"},
    {"--nodes", kNodes},
    {"--megatron-lm-tp-degree", kOtherParallelism, false, "1"},
    {"--megatron-lm-context-parallel-size", kOtherParallelism, false, "1"},
    {"--megatron-lm-expert-", "there are no layers with experts", false, "1"},
    {"--megatron-lm-sequence-parallelism",
     "it divides activations among tensor-parallel ranks, of which there is one", true},
    {"--megatron-lm-recompute-", "each layer is recomputed from its input: --recompute full", true},
    {"--megatron-lm-no-save-optim", "checkpoints have the optimizer's state, always", true},
    {"--megatron-lm-no-load-optim", "start from a checkpoint's parameters alone with --init"},
    {"--megatron-lm-overlap-", kOverlaps, true},
    {"--megatron-lm-attention-softmax-in-fp32", "softmax is computed in fp32, always", true},
    {"--megatron-lm-attention-backend", "the device decides which kernels compute attention", true},
    {"--megatron-lm-attention-dropout", "say so: --dropout"},
    {"--megatron-lm-hidden-dropout", "say so: --dropout"},
    {"--megatron-lm-calculate-per-token-loss",
     "the loss is averaged over the tokens of the whole step, always", true},
    {"--megatron-lm-use-rotary-position-embeddings",
     "the model says which embeddings of positions it has", true},
    {"--megatron-lm-use-precision-aware-optimizer", "the optimizer's state is in fp32", true},
    {"--megatron-lm-use-custom-fsdp", "say how to shard: --strategy full_shard"},
    {"--megatron-lm-eod-mask-loss", "every token counts in the loss"},
    {"--megatron-lm-", kOtherParallelism},
    {"--parallelism-config-", kOtherParallelism},
    {"--parallelism.data-parallel-shard-degree", "say how many replicas: --replicas"},
    {"--parallelism.", kOtherParallelism, false, "1"},
    {"--tpu", kTpu},
    {"--no-tpu-cluster", kTpu},
    {"--vm", kTpu},
    {"--env", kTpu},
    {"--downcast-bf16", kTpu, true},
    {"--aws-", "runs are not sent to Amazon SageMaker"},
    {"--same-network", kOneMeeting, true},
    {"--rdzv-", kOneMeeting},
    {"--local-addr", kOneMeeting},
    {"--standalone", "a run on one machine needs no flag", true},
    {"--monitor-interval", kNoMonitor, true},
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
    {"--trust-remote-code", "the models are this program's own presets", true},
};

}  // namespace

std::span<const FlagWithoutCounterpart> flags_without_counterpart() { return kMissing; }

std::vector<std::string> take_flags_without_effect(std::vector<std::string>& words) {
  std::vector<std::string> notes;
  for (auto word = words.begin(); word != words.end();) {
    const std::size_t equals = word->find('=');
    const auto next = std::next(word);
    const std::string given = equals != word->npos  ? word->substr(equals + 1)
                              : next != words.end() ? *next
                                                    : "";
    const auto fits = [&](const FlagWithoutCounterpart& flag) {
      return word->starts_with(flag.beginning);
    };
    const auto is_taken = [&](const FlagWithoutCounterpart& flag) {
      return fits(flag) && (flag.is_taken || (!flag.harmless.empty() && given == flag.harmless));
    };
    const auto found = std::ranges::find_if(kMissing, fits);
    if (found == std::end(kMissing) || !is_taken(*found)) {
      ++word;
      continue;
    }
    const auto value = std::next(word);
    const bool has_value =
        word->find('=') == word->npos && value != words.end() && !value->starts_with('-');
    notes.push_back(concat(word->substr(0, word->find('=')), " has no effect: ", found->why));
    word = words.erase(word, has_value ? std::next(value) : value);
  }
  return notes;
}

}  // namespace tessera
