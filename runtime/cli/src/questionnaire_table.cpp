#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <sstream>
#include <utility>

#include "questionnaire.h"
#include "questionnaire_document.h"
#include "tessera/core/error.h"
#include "tessera/trainer/config_sources.h"

// [Note: questions left out] Accelerate asks more than this program can do: other accelerators,
// torch dynamo, mpirun, offloading, Megatron-LM, NUMA, tensor and context parallelism, mixtures of
// experts, fp16 and fp8. A file with those answers would be refused by `tessera train`, so they are
// not asked for; where somebody might look for one, a note says so. Some keys get the one answer
// that both programs take (questionnaire_document.cpp).

namespace tessera::cli {
namespace {

using nlohmann::json;
using Condition = std::function<bool(const Answers&)>;
using enum AnswerKind;

constexpr const char* kReplicate = "parallelism_config.parallelism_config_dp_replicate_size";
constexpr const char* kShard = "parallelism_config.parallelism_config_dp_shard_size";
constexpr const char* kVersion = "fsdp_config.fsdp_version";
constexpr const char* kWrap = "fsdp_config.fsdp_auto_wrap_policy";
constexpr const char* kStage = "deepspeed_config.zero_stage";
constexpr const char* kJsonFile = "deepspeed_config.deepspeed_config_file";
constexpr const char* kUseJsonFile = "ask.deepspeed_file";
constexpr const char* kUseMesh = "ask.parallelism_config";
constexpr const char* kUseLayers = "ask.no_split_modules";
constexpr const char* kUseClipping = "ask.gradient_clipping";

Condition is(const char* key, json value) {
  return [key, value = std::move(value)](const Answers& answers) {
    return answer_or(answers, key, json()) == value;
  };
}

/// True only if it was asked and is another.
Condition is_other(const char* key, json value) {
  return [key, value = std::move(value)](const Answers& answers) {
    return answers.contains(key) && answers.find(key)->second != value;
  };
}

Condition both(Condition first, Condition second) {
  return [first = std::move(first), second = std::move(second)](const Answers& answers) {
    return first(answers) && second(answers);
  };
}

std::vector<Choice> same_names(std::initializer_list<const char*> names) {
  std::vector<Choice> choices;
  for (const char* name : names) choices.push_back({name, name});
  return choices;
}

std::string device_of(const Answers& answers) {
  return is(kMachineType, "MULTI_CPU")(answers) ? "CPU" : "GPU";
}

std::vector<Question> machine_questions(const MachineFacts& machine) {
  const char* type = machine.gpus > 1                         ? "MULTI_GPU"
                     : machine.gpus == 0 && machine.cores > 1 ? "MULTI_CPU"
                                                              : "NO";
  const Condition distributed = is_other(kMachineType, "NO");
  const Condition several = is_other("num_machines", 1);
  return {
      {.key = kMachineType,
       .text = "Which type of machine are you using?",
       .kind = kMenu,
       .choices = {{"No distributed training", "NO"},
                   {"multi-CPU", "MULTI_CPU"},
                   {"multi-GPU", "MULTI_GPU"}},
       .fallback = type,
       .note =
           "FSDP and DeepSpeed's ZeRO shard on CPUs as well here; `accelerate launch` shards on "
           "GPUs only."},
      {.key = "num_machines",
       .text =
           "How many different machines will you use (use more than 1 for multi-node training)?",
       .kind = kInteger,
       .fallback = 1,
       .asked_if = distributed,
       .minimum = 1},
      {.key = "machine_rank",
       .text = "What is the rank of this machine?",
       .kind = kInteger,
       .fallback = 0,
       .asked_if = several,
       .note = "`tessera train` itself takes the file of machine 0 only and does not look at the "
               "address; the next answers are for `accelerate launch`.",
       .check = [](const json& rank, const Answers& answers) -> std::string {
         const json machines = answer_or(answers, "num_machines", 1);
         if (rank < machines) return "";
         return concat("The rank must be below ", machines, ", the number of machines.");
       }},
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
      {.key = "same_network",
       .text = "Are all the machines on the same local network? Answer `no` if nodes are on the "
               "cloud and/or on different network hosts",
       .kind = kYesNo,
       .fallback = true,
       .asked_if = several},
      {.key = "rdzv_backend",
       .text = "What rendezvous backend will you use? ('static', 'c10d', ...)",
       .fallback = "static",
       .asked_if = is("same_network", false)},
      {.key = "debug",
       .text = "Should distributed operations be checked while running for errors? This can avoid "
               "timeout issues but will be slower.",
       .kind = kYesNo,
       .fallback = false,
       .asked_if = distributed},
      {.key = "use_cpu",
       .text = "Do you want to run your training on CPU only (even if a GPU is available)?",
       .kind = kYesNo,
       .fallback = machine.gpus == 0,
       .asked_if = is(kMachineType, "NO")},
  };
}

std::vector<Question> deepspeed_questions() {
  const Condition own_stage = is_other(kStage, json());
  return {
      {.key = kUseDeepSpeed,
       .text = "Do you want to use DeepSpeed?",
       .kind = kYesNo,
       .fallback = false,
       .asked_if = is_other(kMachineType, "NO")},
      {.key = kUseJsonFile,
       .text = "Do you want to specify a json file to a DeepSpeed config?",
       .kind = kYesNo,
       .fallback = false,
       .asked_if = is(kUseDeepSpeed, true)},
      {.key = kJsonFile,
       .text = "Please enter the path to the json DeepSpeed config file",
       .asked_if = is(kUseJsonFile, true),
       .check = [](const json& path, const Answers&) -> std::string {
         std::error_code error;
         if (std::filesystem::is_regular_file(path.get<std::string>(), error)) return "";
         return concat("There is no file '", path.get<std::string>(),
                       "'; enter a path that is there.");
       }},
      {.key = kStage,
       .text = "What should be your DeepSpeed's ZeRO optimization stage?",
       .kind = kMenu,
       .choices = {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}},
       .fallback = 2,
       .asked_if = is(kUseJsonFile, false),
       .note = "Offloading and mixtures of experts are not asked about: they are not supported."},
      {.key = "deepspeed_config.gradient_accumulation_steps",
       .text = "How many gradient accumulation steps you're passing in your script?",
       .kind = kInteger,
       .fallback = 1,
       .asked_if = own_stage,
       .minimum = 1},
      {.key = kUseClipping,
       .text = "Do you want to use gradient clipping?",
       .kind = kYesNo,
       .fallback = false,
       .asked_if = own_stage},
      {.key = "deepspeed_config.gradient_clipping",
       .text = "What is the gradient clipping value?",
       .kind = kNumber,
       .fallback = 1.0,
       .asked_if = is(kUseClipping, true)},
      {.key = "deepspeed_config.zero3_save_16bit_model",
       .text = "Do you want to save 16-bit model weights when using ZeRO Stage-3?",
       .kind = kYesNo,
       .fallback = false,
       .asked_if = is(kStage, 3)},
      {.key = "deepspeed_config.zero3_init_flag",
       .text = "Do you want to enable `deepspeed.zero.Init` when using ZeRO Stage-3 for "
               "constructing massive models?",
       .kind = kYesNo,
       .fallback = false,
       .asked_if =
           [](const Answers& answers) {
             return is(kStage, 3)(answers) || is(kUseJsonFile, true)(answers);
           }},
  };
}

/// FSDP stops at a class that the model lacks, but only when it runs.
std::string check_classes(const json& answer, const Answers&) {
  const std::vector<std::string> known = block_class_names();
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  std::istringstream names(answer.get<std::string>());
  for (std::string name; std::getline(names, name, ',');) {
    std::erase(name, ' ');
    if (std::ranges::find(known, name) == known.end()) {
      return concat("There is no layer class '", name, "' here; a layer is called ", list, ".");
    }
  }
  return "";
}

std::vector<Question> wrap_questions() {
  return {
      {.key = kWrap,
       .text = "What should be your auto wrap policy?",
       .kind = kMenu,
       .choices = same_names({"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}),
       .fallback = "TRANSFORMER_BASED_WRAP",
       .asked_if = is(kUseFsdp, true),
       .note = "Offloading is not asked about: it is not supported."},
      {.key = kUseLayers,
       .text = "Do you want to use the model's `_no_split_modules` to wrap. Only applicable for "
               "Transformers",
       .kind = kYesNo,
       .fallback = false,
       .asked_if = is(kWrap, "TRANSFORMER_BASED_WRAP")},
      {.key = "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
       .text = "Specify the comma-separated list of transformer layer class names "
               "(case-sensitive) to wrap",
       .fallback = block_class_names().front(),
       .asked_if = is(kUseLayers, false),
       .check = check_classes},
      {.key = "fsdp_config.fsdp_min_num_params",
       .text = "What should be your FSDP's minimum number of parameters for Default Auto Wrapping "
               "Policy?",
       .kind = kInteger,
       .fallback = 100'000'000,
       .asked_if = is(kWrap, "SIZE_BASED_WRAP")},
  };
}

std::vector<Question> fsdp_questions() {
  const Condition version_1 = is(kVersion, 1);
  const Condition version_2 = is(kVersion, 2);
  const auto flag = [](const char* key, const char* text, bool fallback, Condition asked_if) {
    return Question{.key = key,
                    .text = text,
                    .kind = kYesNo,
                    .fallback = fallback,
                    .asked_if = std::move(asked_if)};
  };
  const auto menu = [](const char* key, const char* text, std::initializer_list<const char*> names,
                       Condition asked_if) {
    return Question{.key = key,
                    .text = text,
                    .kind = kMenu,
                    .choices = same_names(names),
                    .fallback = *names.begin(),
                    .asked_if = std::move(asked_if)};
  };
  std::vector<Question> questions{
      flag(kUseFsdp, "Do you want to use FullyShardedDataParallel?", false,
           is(kUseDeepSpeed, false)),
      {.key = kVersion,
       .text = "What should be your FSDP version?",
       .kind = kMenu,
       .choices = {{"1", 1}, {"2", 2}},
       .fallback = 2,
       .asked_if = is(kUseFsdp, true)},
      // Accelerate's own questionnaire writes fsdp_reshard_after_forward for this, which its
      // launcher then ignores: every such file runs FULL_SHARD. Both programs read this key.
      menu("fsdp_config.fsdp_sharding_strategy", "What should be your sharding strategy?",
           {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"},
           version_1),
      flag("fsdp_config.fsdp_reshard_after_forward",
           "Do you want to enable resharding after forward?", true, version_2),
  };
  std::ranges::move(wrap_questions(), std::back_inserter(questions));
  for (Question question : {
           menu("fsdp_config.fsdp_backward_prefetch",
                "What should be your FSDP's backward prefetch policy?",
                {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}, version_1),
           menu("fsdp_config.fsdp_state_dict_type", "What should be your FSDP's state dict type?",
                {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}, version_1),
           menu("fsdp_config.fsdp_state_dict_type", "What should be your FSDP's state dict type?",
                {"SHARDED_STATE_DICT", "FULL_STATE_DICT"}, version_2),
           flag("fsdp_config.fsdp_forward_prefetch",
                "Do you want to enable FSDP's forward prefetch policy?", false, version_1),
           flag("fsdp_config.fsdp_use_orig_params",
                "Do you want to enable FSDP's `use_orig_params` feature?", true, version_1),
           flag("fsdp_config.fsdp_cpu_ram_efficient_loading",
                "Do you want to enable CPU RAM efficient model loading? Only applicable for "
                "Transformers models.",
                true, is(kUseFsdp, true)),
           flag("fsdp_config.fsdp_sync_module_states",
                "Do you want each individually wrapped FSDP unit to broadcast module parameters "
                "from rank 0 at the start?",
                true, both(version_1, is("fsdp_config.fsdp_cpu_ram_efficient_loading", false))),
           flag("fsdp_config.fsdp_activation_checkpointing",
                "Do you want to enable FSDP activation checkpointing?", false, is(kUseFsdp, true)),
           flag(kUseMesh, "Do you want to use the parallelism config?", false, version_2),
       }) {
    questions.push_back(std::move(question));
  }
  return questions;
}

std::int64_t mesh_size(const Answers& answers) {
  return answer_or(answers, kReplicate, 1).get<std::int64_t>() *
         answer_or(answers, kShard, 1).get<std::int64_t>();
}

std::string check_processes(const json& answer, const Answers& answers) {
  const auto processes = answer.get<std::int64_t>();
  const auto machines = answer_or(answers, "num_machines", 1).get<std::int64_t>();
  const std::int64_t mesh = mesh_size(answers);
  const bool sharded = is(kUseFsdp, true)(answers) || is(kUseDeepSpeed, true)(answers);
  if (processes == 1 && !sharded) {
    return "Distributed training needs at least 2; for one process, start again and choose 'No "
           "distributed training'.";
  }
  if (processes % machines != 0) {
    return concat("It must be a multiple of ", machines, ", the number of machines.");
  }
  if (mesh == 1 || processes == mesh) return "";
  return concat("The mesh of ", answer_or(answers, kReplicate, 1), " x ",
                answer_or(answers, kShard, 1), " has ", mesh, " ranks; enter ", mesh,
                ", or start again for another mesh.");
}

std::vector<Question> mesh_questions(const MachineFacts& machine) {
  return {
      {.key = kReplicate,
       .text = "What is the data parallelism replicate size?",
       .kind = kInteger,
       .fallback = 1,
       .asked_if = is(kUseMesh, true),
       .minimum = 1,
       .maximum = 1 << 20,
       .note = "Tensor and context parallelism are not asked about: they are not supported."},
      {.key = kShard,
       .text = "What is the FSDP shard size?",
       .kind = kInteger,
       .fallback_from =
           [machine](const Answers& answers) {
             Answers without_mesh = answers;
             const auto replicas = without_mesh.extract(kReplicate).mapped().get<std::int64_t>();
             return std::max<std::int64_t>(1, default_processes(machine, without_mesh) / replicas);
           },
       .asked_if = is(kUseMesh, true),
       .minimum = 1,
       .maximum = 1 << 20,
       .check = [](const json& shard, const Answers& answers) -> std::string {
         const auto machines = answer_or(answers, "num_machines", 1).get<std::int64_t>();
         const std::int64_t ranks = mesh_size(answers) * shard.get<std::int64_t>();
         if (ranks == 1 || ranks % machines == 0) return "";
         return concat("The mesh of ", answer_or(answers, kReplicate, 1), " x ", shard, " has ",
                       ranks, " ranks, which ", machines, " machines cannot share evenly.");
       }},
  };
}

/// One question for each device: the words are different.
std::vector<Question> process_questions(const MachineFacts& machine) {
  std::vector<Question> questions;
  for (const char* device : {"CPU", "GPU"}) {
    questions.push_back(
        {.key = "num_processes",
         .text = concat("How many ", device, "(s) should be used for distributed training?"),
         .kind = kInteger,
         .fallback_from = [machine](const Answers& answers) -> json {
           return default_processes(machine, answers);
         },
         .asked_if =
             [device](const Answers& answers) {
               return is_other(kMachineType, "NO")(answers) && device_of(answers) == device;
             },
         .minimum = 1,
         .maximum = 1 << 20,
         .check = check_processes});
  }
  questions.push_back(
      {.key = "gpu_ids",
       .text = "What GPU(s) (by id) should be used for training on this machine as a "
               "comma-separated list?",
       .fallback = "all",
       .asked_if = both(is(kMachineType, "MULTI_GPU"), is(kUseFsdp, false)),
       .check = [](const json& ids, const Answers&) -> std::string {
         const std::string text = ids;
         const bool list = text.find_first_not_of("0123456789, ") == std::string::npos;
         return list || text == "all" ? "" : "Please enter 'all', or ids such as 0,1.";
       }});
  questions.push_back(
      {.key = "mixed_precision",
       .text = "Do you wish to use mixed precision?",
       .kind = kMenu,
       .choices = same_names({"no", "bf16"}),
       .fallback = "no",
       .asked_if = [](const Answers& answers) { return !is(kUseJsonFile, true)(answers); },
       .note = "fp16 and fp8 are left out: they are not supported, and bf16 needs no loss "
               "scaling."});
  return questions;
}

}  // namespace

std::int64_t default_processes(const MachineFacts& machine, const Answers& answers) {
  if (const std::int64_t mesh = mesh_size(answers); mesh > 1) return mesh;
  const json type = answer_or(answers, kMachineType, "NO");
  if (type == json("NO")) return 1;
  const bool sharded = is(kUseFsdp, true)(answers) || is(kUseDeepSpeed, true)(answers);
  const std::int64_t least = type == json("MULTI_GPU") && sharded ? 1 : 2;
  // On a CPU more ranks only share its cores: two are the fewest that are distributed.
  const std::int64_t here = type == json("MULTI_GPU") ? machine.gpus : 2;
  return std::max(here, least) * answer_or(answers, "num_machines", 1).get<std::int64_t>();
}

std::vector<Question> config_questions(const MachineFacts& machine) {
  std::vector<Question> questions;
  for (std::vector<Question> part :
       {machine_questions(machine), deepspeed_questions(), fsdp_questions(),
        mesh_questions(machine), process_questions(machine)}) {
    std::ranges::move(part, std::back_inserter(questions));
  }
  return questions;
}

}  // namespace tessera::cli
