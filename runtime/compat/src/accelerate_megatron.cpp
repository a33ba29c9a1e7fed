#include "accelerate_megatron.h"

#include "fsdp.h"

namespace tessera::compat {
namespace {

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
