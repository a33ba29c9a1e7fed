#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>

#include "questionnaire/questionnaire_document.h"
#include "questionnaire/questionnaire_rows.h"
#include "tessera/core/error.h"

// [Note: questions left out] Accelerate asks more than this program can do: other accelerators,
// torch dynamo, mpirun, offloading, Megatron-LM, NUMA, tensor and context parallelism, mixtures of
// experts, fp16 and fp8. A file with those answers would be refused by `tessera train`, so they are
// not asked for; where somebody might look for one, a note says so. Some keys get the one answer
// that both programs take (questionnaire_document.cpp).

namespace tessera::cli {
namespace {

using nlohmann::json;
using enum AnswerKind;

constexpr const char* kStage = "deepspeed_config.zero_stage";
constexpr const char* kJsonFile = "deepspeed_config.deepspeed_config_file";
constexpr const char* kUseJsonFile = "ask.deepspeed_file";
constexpr const char* kUseClipping = "ask.gradient_clipping";

std::string device_of(const Answers& answers) {
  return is(kMachineType, "MULTI_CPU")(answers) ? "CPU" : "GPU";
}

std::vector<Question> machine_questions(const MachineFacts& machine) {
  const char* type = machine.gpus > 1                         ? "MULTI_GPU"
                     : machine.gpus == 0 && machine.cores > 1 ? "MULTI_CPU"
                                                              : "NO";
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
       .asked_if = is_other(kMachineType, "NO"),
       .minimum = 1},
  };
}

/// How several machines meet.
std::vector<Question> network_questions() {
  const Condition several = is_other("num_machines", 1);
  return {
      {.key = "machine_rank",
       .text = "What is the rank of this machine?",
       .kind = kInteger,
       .fallback = 0,
       .asked_if = several,
       .note = "`tessera launch --config FILE` reads this answer and the next. One file does for "
               "all machines, if each says its own rank: `tessera launch --node-rank N`.",
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
      yes_or_no("same_network",
                "Are all the machines on the same local network? Answer `no` if nodes are on the "
                "cloud and/or on different network hosts",
                true, several),
      {.key = "rdzv_backend",
       .text = "What rendezvous backend will you use? ('static', 'c10d', ...)",
       .fallback = "static",
       .asked_if = is("same_network", false)},
  };
}

std::vector<Question> device_questions(const MachineFacts& machine) {
  return {
      yes_or_no("debug",
                "Should distributed operations be checked while running for errors? This can avoid "
                "timeout issues but will be slower.",
                false, is_other(kMachineType, "NO")),
      yes_or_no("use_cpu",
                "Do you want to run your training on CPU only (even if a GPU is available)?",
                machine.gpus == 0, is(kMachineType, "NO")),
  };
}

std::vector<Question> deepspeed_questions() {
  const Condition own_stage = is(kUseJsonFile, false);
  return {
      yes_or_no(kUseDeepSpeed, "Do you want to use DeepSpeed?", false,
                is_other(kMachineType, "NO")),
      yes_or_no(kUseJsonFile, "Do you want to specify a json file to a DeepSpeed config?", false,
                is(kUseDeepSpeed, true)),
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
                false,
                [](const Answers& answers) {
                  return is(kStage, 3)(answers) || is(kUseJsonFile, true)(answers);
                }),
  };
}

std::string check_processes(const json& answer, const Answers& answers) {
  const auto processes = answer.get<std::int64_t>();
  const auto machines = answer_or(answers, "num_machines", 1).get<std::int64_t>();
  const bool sharded = is(kUseFsdp, true)(answers) || is(kUseDeepSpeed, true)(answers);
  if (processes == 1 && !sharded) {
    return "Distributed training needs at least 2; for one process, start again and choose 'No "
           "distributed training'.";
  }
  if (processes % machines != 0) {
    return concat("It must be a multiple of ", machines, ", the number of machines.");
  }
  return check_mesh(processes, answers);
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
         const bool list = text.find_first_not_of("0123456789, ") == std::string::npos &&
                           std::isdigit(static_cast<unsigned char>(text.front())) != 0;
         return list || text == "all" ? "" : "Please enter 'all', or ids such as 0,1.";
       }});
  questions.push_back(
      menu("mixed_precision", "Do you wish to use mixed precision?", {"no", "bf16"},
           [](const Answers& answers) { return !is(kUseJsonFile, true)(answers); }));
  questions.back().note =
      "fp16 and fp8 are left out: they are not supported, and bf16 needs no loss scaling.";
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
       {machine_questions(machine), network_questions(), device_questions(machine),
        deepspeed_questions(), fsdp_questions(), mesh_questions(machine),
        process_questions(machine)}) {
    std::ranges::move(part, std::back_inserter(questions));
  }
  return questions;
}

}  // namespace tessera::cli
