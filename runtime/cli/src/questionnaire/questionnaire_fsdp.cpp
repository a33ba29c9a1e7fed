#include <algorithm>
#include <iterator>
#include <sstream>

#include "questionnaire/questionnaire_document.h"
#include "questionnaire/questionnaire_rows.h"
#include "tessera/core/error.h"
#include "tessera/trainer/config_sources.h"

namespace tessera::cli {
namespace {

using nlohmann::json;
using enum AnswerKind;

constexpr const char* kReplicate = "parallelism_config.parallelism_config_dp_replicate_size";
constexpr const char* kShard = "parallelism_config.parallelism_config_dp_shard_size";
constexpr const char* kVersion = "fsdp_config.fsdp_version";
constexpr const char* kWrap = "fsdp_config.fsdp_auto_wrap_policy";
constexpr const char* kLoading = "fsdp_config.fsdp_cpu_ram_efficient_loading";
constexpr const char* kStateDict = "fsdp_config.fsdp_state_dict_type";
constexpr const char* kUseMesh = "ask.parallelism_config";
constexpr const char* kUseLayers = "ask.no_split_modules";

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

std::string the_mesh(const Answers& answers, const json& shard) {
  return concat("The mesh of ", answer_or(answers, kReplicate, 1).get<std::int64_t>(), " x ",
                shard.get<std::int64_t>());
}

std::vector<Question> strategy_questions() {
  return {
      yes_or_no(kUseFsdp, "Do you want to use FullyShardedDataParallel?", false,
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
           is(kVersion, 1)),
      yes_or_no("fsdp_config.fsdp_reshard_after_forward",
                "Do you want to enable resharding after forward?", true, is(kVersion, 2)),
  };
}

std::vector<Question> wrap_questions() {
  Question policy =
      menu(kWrap, "What should be your auto wrap policy?",
           {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}, is(kUseFsdp, true));
  policy.note = "Offloading is not asked about: it is not supported.";
  return {
      policy,
      yes_or_no(kUseLayers,
                "Do you want to use the model's `_no_split_modules` to wrap. Only applicable for "
                "Transformers",
                false, is(kWrap, "TRANSFORMER_BASED_WRAP")),
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

std::vector<Question> run_time_questions() {
  const Condition version_1 = is(kVersion, 1);
  return {
      menu("fsdp_config.fsdp_backward_prefetch",
           "What should be your FSDP's backward prefetch policy?",
           {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}, version_1),
      menu(kStateDict, "What should be your FSDP's state dict type?",
           {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}, version_1),
      menu(kStateDict, "What should be your FSDP's state dict type?",
           {"SHARDED_STATE_DICT", "FULL_STATE_DICT"}, is(kVersion, 2)),
      yes_or_no("fsdp_config.fsdp_forward_prefetch",
                "Do you want to enable FSDP's forward prefetch policy?", false, version_1),
      yes_or_no("fsdp_config.fsdp_use_orig_params",
                "Do you want to enable FSDP's `use_orig_params` feature?", true, version_1),
      yes_or_no(kLoading,
                "Do you want to enable CPU RAM efficient model loading? Only applicable for "
                "Transformers models.",
                true, is(kUseFsdp, true)),
      yes_or_no("fsdp_config.fsdp_sync_module_states",
                "Do you want each individually wrapped FSDP unit to broadcast module parameters "
                "from rank 0 at the start?",
                true, both(version_1, is(kLoading, false))),
      yes_or_no("fsdp_config.fsdp_activation_checkpointing",
                "Do you want to enable FSDP activation checkpointing?", false, is(kUseFsdp, true)),
      yes_or_no(kUseMesh, "Do you want to use the parallelism config?", false, is(kVersion, 2)),
  };
}

}  // namespace

std::vector<Question> fsdp_questions() {
  std::vector<Question> questions = strategy_questions();
  for (const auto& part : {wrap_questions(), run_time_questions()}) {
    std::ranges::copy(part, std::back_inserter(questions));
  }
  return questions;
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
         return concat(the_mesh(answers, shard), " has ", ranks, " ranks, which ", machines,
                       " machines cannot share evenly.");
       }},
  };
}

std::int64_t mesh_size(const Answers& answers) {
  return answer_or(answers, kReplicate, 1).get<std::int64_t>() *
         answer_or(answers, kShard, 1).get<std::int64_t>();
}

std::string check_mesh(std::int64_t ranks, const Answers& answers) {
  const std::int64_t mesh = mesh_size(answers);
  if (mesh == 1 || ranks == mesh) return "";
  return concat(the_mesh(answers, answer_or(answers, kShard, 1)), " has ", mesh, " ranks; enter ",
                mesh, ", or start again for another mesh.");
}

}  // namespace tessera::cli
