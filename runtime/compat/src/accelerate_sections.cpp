#include "accelerate.h"

#include "deepspeed.h"
#include "document.h"
#include "tessera/core/text.h"

namespace tessera::compat {
namespace {

/// DeepSpeed offloads it from ZeRO's stage `first` on.
void read_offload(Section& section, const char* key, const char* setting, std::int64_t first) {
  const auto device = section.text(key);
  if (!device) return;
  const bool on_disk = *device == "nvme";
  if (*device != "none" && section.integer("zero_stage").value_or(2) < first) {
    section.no_effect(key, concat("DeepSpeed offloads it from stage ", first, " on"), Told::kByRun);
    return;
  }
  section.honour(key, setting, on_disk ? "disk" : *device == "cpu" ? "host" : "none");
}

struct OnDisk {
  const char* device;
  const char* path;
};
constexpr OnDisk kOptimizer{"offload_optimizer_device", "offload_optimizer_nvme_path"};
constexpr OnDisk kParameters{"offload_param_device", "offload_param_nvme_path"};

/// The folder, "" if none is used. `other`: that of what else is on disk, which must be the same.
std::string read_path(Section& section, const OnDisk& keys, std::int64_t first,
                      const std::string& other) {
  const auto path = section.text(keys.path);
  if (!path) return "";
  if (section.text(keys.device).value_or("none") != "nvme" ||
      section.integer("zero_stage").value_or(2) < first) {
    section.no_effect(keys.path, concat(keys.device, " keeps nothing on a disk"));
  } else if (lowercase(*path) == "none") {
    section.no_effect(keys.path, "it says no folder");
  } else if (!other.empty() && *path != other) {
    section.refuse_for({section.with(keys.path, other)}, keys.path,
                       "names another folder than offload_optimizer_nvme_path, ", other,
                       ", but a rank has one file for both; make them equal");
  } else {
    section.honour(keys.path, "offload_path", *path);
    return *path;
  }
  return "";
}

void read_stage(Section& section) {
  const std::int64_t stage = section.integer("zero_stage").value_or(2);
  section.set("zero_stage", "strategy", strategy_of_stage(stage), "", "Accelerate's default is 2");
}

void read_accumulation(Section& section, const KnownSettings& known) {
  const char* key = "gradient_accumulation_steps";
  if (!section.pass_on(key, "accumulate") && section.has(key)) {
    section.agree(key, concat("\"auto\" is --accumulate, ", known.integer("accumulate")));
  }
}

void read_clipping(Section& section) {
  const char* key = "gradient_clipping";
  if (section.pass_on(key, "clip_norm")) return;
  section.set(key, "clip_norm", 1.0, "", "Accelerate's default for DeepSpeed is 1.0");
}

void read_saving(Section& section, const KnownSettings& known) {
  const char* key = "zero3_save_16bit_model";
  if (const auto whole = section.flag(key)) {
    translate_state_dict_type(section, key, *whole, known);
  }
}

constexpr const char* kDegree = "megatron_lm_pp_degree";
constexpr const char* kMicroBatches = "megatron_lm_num_micro_batches";

/// Accelerate hands it to Megatron-LM, whose other pipeline ranks have equally many layers.
void read_last_layers(Section& section) {
  constexpr const char* kLast = "megatron_lm_decoder_last_pipeline_num_layers";
  const auto layers = section.integer(kLast);
  if (!layers) return;
  section.honour(kLast, "last_rank_layers", *layers,
                 "blocks of the last pipeline rank, beside the head; the others have equally many "
                 "each, and the first one the embedding");
}

void read_micro_batches(Section& section, const KnownSettings& known) {
  if (section.pass_on(kMicroBatches, "accumulate")) return;
  const bool staged = section.integer(kDegree).value_or(1) > 1;
  if (staged && !known.is_overridden("accumulate")) {
    section.absent(kMicroBatches,
                   "Accelerate's default is 1, with which only one stage computes at a time; give "
                   "--accumulate, several times as many as stages");
  }
}

void read_gradient_clipping(Section& section) {
  constexpr const char* kKey = "megatron_lm_gradient_clipping";
  section.set(kKey, "clip_norm", section.number(kKey).value_or(1.0), "",
              "Accelerate's default for Megatron-LM is 1.0");
}

void read_distributed_optimizer(Section& section) {
  constexpr const char* kDistributed = "megatron_lm_use_distributed_optimizer";
  constexpr const char* kOnHost = "megatron_lm_optimizer_cpu_offload";
  const bool shards = section.flag(kDistributed).value_or(false);
  section.set(kDistributed, "strategy", shards ? "zero1" : "no_shard", "",
              "Accelerate's default is false");
  if (const auto offload = section.flag(kOnHost)) {
    section.honour(kOnHost, "offload_optimizer", *offload ? "host" : "none");
  }
}

/// Accelerate keeps recompute_activations and hands Megatron-LM recompute_granularity only, whose
/// default is full.
void read_granularity(Section& section) {
  constexpr const char* kSelective = "megatron_lm_recompute_activations";
  constexpr const char* kGranularity = "megatron_lm_recompute_granularity";
  if (const auto granularity = section.text(kGranularity)) {
    section.honour(kGranularity, "recompute", *granularity);
    if (section.has(kSelective)) {
      section.no_effect(kSelective, concat(kGranularity, " decides, as in Accelerate"));
    }
  } else if (const auto selective = section.flag(kSelective)) {
    const char* const recompute = *selective ? "selective" : "none";
    section.honour(kSelective, "recompute", recompute);
    section.differ(kSelective, concat("Accelerate hands the key on to nobody, and Megatron-LM ",
                                      "recomputes whole layers, whatever it says; here ",
                                      "recomputation is ", recompute, ", as it asks"));
  } else {
    section.derive(kGranularity, "recompute", "full", "Accelerate's default is full");
  }
}

}  // namespace

void translate_deepspeed_section(Section& section, const KnownSettings& known) {
  read_stage(section);
  attempt([&] { read_accumulation(section, known); });
  attempt([&] { read_clipping(section); });
  attempt([&] { read_offload(section, "offload_optimizer_device", "offload_optimizer", 1); });
  attempt([&] { read_offload(section, "offload_param_device", "offload_parameters", 3); });
  std::string folder;
  attempt([&] { folder = read_path(section, kOptimizer, 1, ""); });
  attempt([&] { read_path(section, kParameters, 3, folder); });
  attempt([&] { read_saving(section, known); });
}

void translate_megatron_section(Section& section, std::int64_t ranks, const KnownSettings& known) {
  attempt([&] { translate_stages(section, kDegree, ranks); });
  read_last_layers(section);
  read_micro_batches(section, known);
  read_gradient_clipping(section);
  read_distributed_optimizer(section);
  read_granularity(section);
  constexpr const char* kContext = "megatron_lm_context_parallel_size";
  if (!section.has(kContext) && !section.is_refused(kContext)) {
    section.absent(kContext,
                   "Accelerate takes 2 where the key is absent; here no sequence is divided");
  }
}

}  // namespace tessera::compat
