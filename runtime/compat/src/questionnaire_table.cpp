#include <initializer_list>
#include <utility>

#include "questionnaire_rows.h"
#include "tessera/compat/config_sources.h"
#include "tessera/compat/questionnaire.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_options.h"

// [Note: questions left out] Accelerate asks more than this program can do: other accelerators,
// torch dynamo, mpirun, Megatron-LM, tensor and context parallelism, mixtures of
// experts, and fp8. But for Megatron-LM's pipelines and fp8, a file with those answers would be
// refused by `tessera train`, so they are not asked for; where somebody might look for one, a note
// says so. Nor is NUMA, which --bind auto decides. Some keys get the one answer that both programs
// take (questionnaire_document.cpp). All other questions have Accelerate's order and words;
// tests/cli/questionnaire_test.cpp lists each that has not, and why.

namespace tessera::questionnaire {
namespace {

using nlohmann::json;
using enum AnswerKind;

/// A menu of more machines would not fit into a terminal.
constexpr std::int64_t kMostInMenu = 16;

constexpr const char* kRank = "machine_rank";
constexpr const char* kUseCpu = "use_cpu";
constexpr const char* kStage = "deepspeed_config.zero_stage";
constexpr const char* kOptimizerDevice = "deepspeed_config.offload_optimizer_device";
constexpr const char* kParameterDevice = "deepspeed_config.offload_param_device";
constexpr const char* kParameterPath = "deepspeed_config.offload_param_nvme_path";
constexpr const char* kVersion = "fsdp_config.fsdp_version";
constexpr const char* kWrap = "fsdp_config.fsdp_auto_wrap_policy";
constexpr const char* kLoading = "fsdp_config.fsdp_cpu_ram_efficient_loading";
constexpr const char* kStateDict = "fsdp_config.fsdp_state_dict_type";
// These only decide what is asked next.
constexpr const char* kUseJsonFile = "ask.deepspeed_file";
constexpr const char* kUseClipping = "ask.gradient_clipping";
constexpr const char* kUseLayers = "ask.no_split_modules";
constexpr const char* kUseMesh = "ask.parallelism_config";

/// The folder of DeepSpeed's documents.
constexpr const char* kOnNvme = "/local_nvme";

constexpr const char* kAboutRank =
    "`tessera launch --config FILE` reads this answer and the next. One file does for all "
    "machines, if each says its own rank: `tessera launch --node-rank N`.";

/// The layer classes of the models that are trained here, and a way to type others.
std::vector<Choice> classes_by_model() {
  std::vector<Choice> choices;
  for (const auto& [name, models] : block_classes()) {
    if (*models != '\0') choices.push_back({concat(name, " (", models, ")"), name});
  }
  choices.push_back({"others: I type their names", nullptr});
  return choices;
}

bool has_rank_menu(const Answers& answers) {
  return is_other(kNumMachines, 1)(answers) && answers.find(kNumMachines)->second <= kMostInMenu;
}

bool has_typed_rank(const Answers& answers) {
  return is_other(kNumMachines, 1)(answers) && !has_rank_menu(answers);
}

std::vector<Choice> ranks(const Answers& answers) {
  std::vector<Choice> choices;
  for (std::int64_t i = 0; i < answers.find(kNumMachines)->second; ++i) {
    choices.push_back({std::to_string(i), i});
  }
  return choices;
}

std::string check_rank(const json& rank, const Answers& answers) {
  const json& machines = answers.find(kNumMachines)->second;
  if (rank < machines) return "";
  return "The rank must be below " + machines.dump() + ", the number of machines.";
}

bool uses_cpus(const Answers& answers) {
  return is(kMachineType, "MULTI_CPU")(answers) || is(kUseCpu, true)(answers);
}

/// A single process counts as one of several as soon as it is DeepSpeed's.
bool has_processes(const Answers& answers) {
  return is_other(kMachineType, "NO")(answers) || is(kUseDeepSpeed, true)(answers);
}

/// Accelerate asks from ZeRO's stage 2 on.
bool may_offload(const Answers& answers) {
  return is(kStage, 2)(answers) || is(kStage, 3)(answers);
}

std::string check_same_folder(const json& path, const Answers& answers) {
  const auto other = answers.find(kParameterPath);
  if (other == answers.end() || other->second == path) return "";
  return "It must be " + other->second.get<std::string>() +
         ", where parameters are: a rank has one file for both.";
}

bool has_gpu_ids(const Answers& answers) {
  const bool one = is(kMachineType, "NO")(answers) && is(kUseDeepSpeed, false)(answers);
  const bool ddp = is(kMachineType, "MULTI_GPU")(answers) && is(kUseFsdp, false)(answers);
  return (one || ddp) && !uses_cpus(answers);
}

const char* type_of(const MachineFacts& machine) {
  if (machine.gpus > 1) return "MULTI_GPU";
  return machine.gpus == 0 && machine.cores > 1 ? "MULTI_CPU" : "NO";
}

Question with_note(const char* note, Question question) {
  question.note = note;
  return question;
}

/// One question for each device: the words are different.
Question how_many(const char* of_what, Condition asked_if, const MachineFacts& machine) {
  return {.key = "num_processes",
          .text = std::string("How many ") + of_what + " should be used for distributed training?",
          .kind = kInteger,
          .fallback_from =
              [machine](const Answers& answers) { return default_processes(machine, answers); },
          .asked_if = both(has_processes, std::move(asked_if)),
          .minimum = 1,
          .maximum = kMaxRanks,
          .check = check_processes};
}

}  // namespace

std::vector<Question> config_questions(const MachineFacts& machine) {
  const Condition distributed = is_other(kMachineType, "NO");
  const Condition several = is_other(kNumMachines, 1);
  const Condition own_stage = is(kUseJsonFile, false);
  const Condition fsdp = is(kUseFsdp, true);
  const Condition version_1 = is(kVersion, 1);
  const Condition version_2 = is(kVersion, 2);
  return {
      // The machines.
      {.key = kMachineType,
       .text = "Which type of machine are you using?",
       .kind = kMenu,
       .choices = {{"No distributed training", "NO"},
                   {"multi-CPU", "MULTI_CPU"},
                   {"multi-GPU", "MULTI_GPU"}},
       .fallback = type_of(machine),
       .note =
           "FSDP and DeepSpeed's ZeRO shard on CPUs as well here; `accelerate launch` shards on "
           "GPUs only."},
      {.key = kNumMachines,
       .text =
           "How many different machines will you use (use more than 1 for multi-node training)?",
       .kind = kInteger,
       .fallback = 1,
       .asked_if = distributed,
       .minimum = 1,
       .maximum = kMaxRanks},
      {.key = kRank,
       .text = "What is the rank of this machine?",
       .kind = kMenu,
       .choices_from = ranks,
       .fallback = 0,
       .asked_if = has_rank_menu,
       .note = kAboutRank},
      {.key = kRank,
       .text = "What is the rank of this machine?",
       .kind = kInteger,
       .fallback = 0,
       .asked_if = has_typed_rank,
       .note = kAboutRank,
       .check = check_rank},
      {.key = "main_process_ip",
       .text = "What is the IP address of the machine that will host the main process?",
       .asked_if = several},
      {.key = "main_process_port",
       .text = "What is the port you will use to communicate with the main process?",
       .kind = kInteger,
       .fallback = 29500,
       .asked_if = several,
       .minimum = 1,
       .maximum = 65535},
      yes_or_no("same_network",
                "Are all the machines on the same local network? Answer `no` if nodes are on the "
                "cloud and/or on different network hosts",
                true, several),
      {.key = "rdzv_backend",
       .text = "What rendezvous backend will you use? ('static', 'c10d', ...)",
       .fallback = "static",
       .asked_if = is("same_network", false)},
      yes_or_no("debug",
                "Should distributed operations be checked while running for errors? This can avoid "
                "timeout issues but will be slower.",
                false, distributed),
      yes_or_no(kUseCpu,
                "Do you want to run your training on CPU only (even if a GPU / Apple Silicon / "
                "Ascend NPU device is available)?",
                machine.gpus == 0, is(kMachineType, "NO")),

      // DeepSpeed.
      yes_or_no(kUseDeepSpeed, "Do you want to use DeepSpeed?", false, {}),
      yes_or_no(kUseJsonFile, "Do you want to specify a json file to a DeepSpeed config?", false,
                is(kUseDeepSpeed, true)),
      {.key = "deepspeed_config.deepspeed_config_file",
       .text = "Please enter the path to the json DeepSpeed config file",
       .asked_if = is(kUseJsonFile, true),
       .check = check_is_file},
      {.key = kStage,
       .text = "What should be your DeepSpeed's ZeRO optimization stage?",
       .kind = kMenu,
       .choices = {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}},
       .fallback = 2,
       .asked_if = own_stage},
      menu(kOptimizerDevice, "Where to offload optimizer states?", {"none", "cpu", "nvme"},
           may_offload),
      menu(kParameterDevice, "Where to offload parameters?", {"none", "cpu", "nvme"}, may_offload),
      {.key = kParameterPath,
       .text = "Nvme Path to offload parameters?",
       .fallback = kOnNvme,
       .asked_if = is(kParameterDevice, "nvme")},
      {.key = "deepspeed_config.offload_optimizer_nvme_path",
       .text = "Nvme Path to offload optimizer states?",
       .fallback_from =
           [](const Answers& answers) { return answer_or(answers, kParameterPath, kOnNvme); },
       .asked_if = is(kOptimizerDevice, "nvme"),
       .check = check_same_folder},
      {.key = "deepspeed_config.gradient_accumulation_steps",
       .text = "How many gradient accumulation steps you're passing in your script?",
       .kind = kInteger,
       .fallback = 1,
       .asked_if = own_stage,
       .minimum = 1,
       .maximum = kMaxAccumulate},
      yes_or_no(kUseClipping, "Do you want to use gradient clipping?", false, own_stage),
      {.key = "deepspeed_config.gradient_clipping",
       .text = "What is the gradient clipping value?",
       .kind = kNumber,
       .fallback = 1.0,
       .asked_if = is(kUseClipping, true)},
      yes_or_no("deepspeed_config.zero3_save_16bit_model",
                "Do you want to save 16-bit model weights when using ZeRO Stage-3?", false,
                is(kStage, 3)),
      yes_or_no("deepspeed_config.zero3_init_flag",
                "Do you want to enable `deepspeed.zero.Init` when using ZeRO Stage-3 for "
                "constructing massive models?",
                false, is(kUseDeepSpeed, true)),

      // FSDP.
      yes_or_no(kUseFsdp, "Do you want to use FullyShardedDataParallel?", false,
                both(distributed, is(kUseDeepSpeed, false))),
      {.key = kVersion,
       .text = "What should be your FSDP version?",
       .kind = kMenu,
       .choices = {{"1", 1}, {"2", 2}},
       .fallback = 2,
       .asked_if = fsdp},
      // Accelerate's own questionnaire writes fsdp_reshard_after_forward for this, which its
      // launcher then ignores: every such file runs FULL_SHARD. Both programs read this key.
      menu("fsdp_config.fsdp_sharding_strategy", "What should be your sharding strategy?",
           {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"},
           version_1),
      yes_or_no("fsdp_config.fsdp_reshard_after_forward",
                "Do you want to enable resharding after forward?", true, version_2),
      yes_or_no("fsdp_config.fsdp_offload_params",
                "Do you want to offload parameters and gradients to CPU?", false, fsdp),
      menu(kWrap, "What should be your auto wrap policy?",
           {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}, fsdp),
      yes_or_no(
          kUseLayers,
          "Do you want to use the model's `_no_split_modules` to wrap. Only applicable for 🤗 "
          "Transformers",
          false, is(kWrap, "TRANSFORMER_BASED_WRAP")),
      {.key = "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
       .text = "Specify the comma-separated list of transformer layer class names "
               "(case-sensitive) to wrap ,e.g, :`BertLayer`, `GPTJBlock`, `T5Block`, "
               "`BertLayer,BertEmbeddings,BertSelfOutput` ...?",
       .person_text = "Which model do you train? Its blocks are wrapped: this is their class.",
       .person_choices = classes_by_model(),
       .fallback = block_class_names().front(),
       .asked_if = is(kUseLayers, false),
       .check = check_layer_names},
      {.key = "fsdp_config.fsdp_min_num_params",
       .text = "What should be your FSDP's minimum number of parameters for Default Auto Wrapping "
               "Policy?",
       .kind = kInteger,
       .fallback = 100'000'000,
       .asked_if = is(kWrap, "SIZE_BASED_WRAP")},
      menu("fsdp_config.fsdp_backward_prefetch",
           "What should be your FSDP's backward prefetch policy?",
           {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}, version_1),
      menu(kStateDict, "What should be your FSDP's state dict type?",
           {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}, version_1),
      menu(kStateDict, "What should be your FSDP's state dict type?",
           {"SHARDED_STATE_DICT", "FULL_STATE_DICT"}, version_2),
      yes_or_no("fsdp_config.fsdp_forward_prefetch",
                "Do you want to enable FSDP's forward prefetch policy?", false, version_1),
      yes_or_no("fsdp_config.fsdp_use_orig_params",
                "Do you want to enable FSDP's `use_orig_params` feature?", true, version_1),
      yes_or_no(kLoading,
                "Do you want to enable CPU RAM efficient model loading? Only applicable for 🤗 "
                "Transformers models.",
                true, fsdp),
      yes_or_no("fsdp_config.fsdp_sync_module_states",
                "Do you want each individually wrapped FSDP unit to broadcast module parameters "
                "from rank 0 at the start?",
                true, both(version_1, is(kLoading, false))),
      yes_or_no("fsdp_config.fsdp_activation_checkpointing",
                "Do you want to enable FSDP activation checkpointing?", false, fsdp),
      yes_or_no(kUseMesh, "Do you want to use the parallelism config?", false, version_2),
      {.key = kReplicate,
       .text = "What is the data parallelism replicate size?",
       .kind = kInteger,
       .fallback = 1,
       .asked_if = is(kUseMesh, true),
       .minimum = 1,
       .maximum = kMaxRanks,
       .note = "Tensor and context parallelism are not asked about: they are not supported."},
      {.key = kShard,
       .text = "What is the FSDP shard size?",
       .kind = kInteger,
       .fallback_from =
           [machine](const Answers& answers) { return default_shard_size(machine, answers); },
       .asked_if = is(kUseMesh, true),
       .minimum = 1,
       .maximum = kMaxRanks,
       .check = check_shard_size},

      // The processes and what they compute in.
      how_many("processes", uses_cpus, machine),
      how_many(
          "GPU(s)", [](const Answers& answers) { return !uses_cpus(answers); }, machine),
      {.key = "gpu_ids",
       .text = "What GPU(s) (by id) should be used for training on this machine as a "
               "comma-separated list?",
       .fallback = "all",
       .asked_if = has_gpu_ids,
       .check = check_gpu_ids},
      with_note(
          "fp8 is left out: write mixed_precision: fp8 into the file, or give --precision fp8.",
          menu("mixed_precision", "Do you wish to use mixed precision?", {"no", "fp16", "bf16"},
               [](const Answers& answers) { return !is(kUseJsonFile, true)(answers); })),
  };
}

}  // namespace tessera::questionnaire
