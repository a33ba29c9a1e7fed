#include "accelerate.h"

#include <algorithm>
#include <array>

#include "document.h"
#include "tessera/core/text.h"

namespace tessera::compat {
namespace {

constexpr const char* kStrategy = "fsdp_sharding_strategy";
constexpr const char* kReshard = "fsdp_reshard_after_forward";

/// One of FSDP's strategies, which Accelerate also numbers from 1.
struct Row {
  const char* name;
  const char* flat;    ///< ours without replicas
  const char* hybrid;  ///< and with them
  bool reshard;        ///< what fsdp_reshard_after_forward says of it in version 2
  bool replicates;
};
constexpr std::array kRows{
    Row{"FULL_SHARD", "full_shard", "hybrid_shard", true, false},
    Row{"SHARD_GRAD_OP", "shard_grad_op", "hybrid_shard_zero2", false, false},
    Row{"NO_SHARD", "no_shard", "no_shard", false, false},
    Row{"HYBRID_SHARD", "full_shard", "hybrid_shard", true, true},
    Row{"HYBRID_SHARD_ZERO2", "shard_grad_op", "hybrid_shard_zero2", false, true},
};
constexpr const Row* kFullShard = &kRows[0];
constexpr const Row* kShardGradOp = &kRows[1];
constexpr const Row* kNoShard = &kRows[2];

const Row* find_row(const std::string& text) {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (upper(text) == kRows[i].name || text == std::to_string(i + 1)) return &kRows[i];
  }
  return nullptr;
}

/// The strategy, and the key that says so: none if it follows from keys that are absent.
struct Choice {
  const Row* row = kFullShard;
  const char* key = nullptr;
};

Choice choose_version_1(Section& fsdp) {
  const auto strategy = fsdp.text(kStrategy);
  const auto reshard = fsdp.text(kReshard);
  const Row* from_reshard = nullptr;
  if (reshard) {
    // A boolean is what version 2 takes there.
    const auto flag = fsdp.flag(kReshard);
    const bool named = find_row(*reshard) != nullptr;
    from_reshard = !named && flag ? (*flag ? kFullShard : kShardGradOp) : find_row(*reshard);
    attempt([&] {
      if (from_reshard != nullptr) return;
      fsdp.refuse(kReshard, "unknown value ", quoted(*reshard),
                  "; allowed: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
                  "HYBRID_SHARD_ZERO2, true, false");
    });
  }
  if (strategy) {
    if (from_reshard != nullptr) {
      fsdp.no_effect(kReshard, "fsdp_sharding_strategy decides, as in Accelerate",
                     told_if(from_reshard != find_row(*strategy)));
    }
    return {find_row(*strategy), kStrategy};
  }
  if (from_reshard == nullptr) return {};
  if (from_reshard != kFullShard) {
    fsdp.differ(kReshard, concat("Accelerate runs FULL_SHARD with fsdp_version 1 whatever this key "
                                 "says; here it is ",
                                 from_reshard->name));
  }
  return {from_reshard, kReshard};
}

void check_reshard_is_flag(Section& fsdp) {
  if (!fsdp.has(kReshard) || fsdp.flag(kReshard)) return;
  const std::string text = fsdp.text(kReshard).value_or("");
  const Row* row = find_row(text);
  std::vector<ConfigChange> change;
  if (row != nullptr) change.push_back(fsdp.with(kReshard, row->reshard));
  fsdp.refuse_for(change, kReshard, quoted(text),
                  " is not true or false, which it must be with fsdp_version 2; true is "
                  "FULL_SHARD, false is SHARD_GRAD_OP");
}

Choice choose_version_2(Section& fsdp) {
  attempt([&] { check_reshard_is_flag(fsdp); });
  const auto strategy = fsdp.text(kStrategy);
  if (const auto reshard = fsdp.flag(kReshard)) {
    if (strategy) {
      const Row* row = find_row(*strategy);
      const bool same = row->reshard == *reshard && !row->replicates && row != kNoShard;
      fsdp.no_effect(
          kStrategy,
          "with fsdp_version 2 fsdp_reshard_after_forward decides, as in Accelerate, and "
          "parallelism_config_dp_replicate_size makes replicas",
          told_if(!same));
    }
    return {*reshard ? kFullShard : kShardGradOp, kReshard};
  }
  if (!strategy) return {};
  const Row* row = find_row(*strategy);
  if (row != kFullShard) {
    fsdp.differ(kStrategy, concat("Accelerate ignores this key with fsdp_version 2 and reshards "
                                  "after forward; here it is ",
                                  row->name));
  }
  return {row, kStrategy};
}

void set_strategy(Section& fsdp, const Choice& choice, const char* strategy) {
  if (choice.key != nullptr) {
    fsdp.honour(choice.key, "strategy", strategy);
  } else {
    fsdp.derive(kStrategy, "strategy", strategy, "Accelerate's default is FULL_SHARD");
  }
}

/// The product must be the number of ranks; all ones is no mesh yet.
void check_mesh(Section& parallelism, std::int64_t replicate, std::int64_t shard,
                std::int64_t ranks) {
  const std::int64_t stages = parallelism.integer(kStages).value_or(1);
  const std::int64_t whole = product({replicate, shard, stages});
  const bool known = ranks != kUnknownRanks && !is_axis_refused(parallelism);
  if (!known || whole == ranks || whole == stages) return;
  std::vector<ConfigChange> change;
  const std::int64_t others = product({replicate, stages});
  if (ranks % others == 0) change.push_back(parallelism.with(kShard, ranks / others));
  parallelism.refuse_for(change, parallelism.has(kShard) ? kShard : kReplicate,
                         "the mesh of dp_replicate_size ", replicate, " x dp_shard_size ", shard,
                         stages > 1 ? concat(" x pp_size ", stages) : "", " has ", whole,
                         " ranks, but there are ", ranks, "; make their product ", ranks,
                         " or change num_processes");
}

/// A mesh with nothing to shard over.
void replicate_only(Section& fsdp, Section& parallelism, const Choice& choice) {
  constexpr const char* kNote =
      "there are replicas only, so nothing is sharded; to shard, give "
      "parallelism_config_dp_shard_size";
  constexpr const char* kRefuses = "Accelerate refuses a mesh with nothing to shard over";
  set_strategy(fsdp, choice, "no_shard");
  parallelism.translate(kReplicate, "strategy", "no_shard", kNote);
  parallelism.differ(kReplicate, kRefuses);
}

void apply_mesh(Section& fsdp, Section& parallelism, const Choice& choice, std::int64_t version,
                std::int64_t ranks) {
  const std::int64_t replicate = parallelism.integer(kReplicate).value_or(1);
  const std::int64_t shard = parallelism.integer(kShard).value_or(1);
  if (version == 1 && (replicate > 1 || shard > 1)) {
    parallelism.refuse_for({fsdp.with("fsdp_version", 2)}, shard > 1 ? kShard : kReplicate,
                           "parallelism_config needs fsdp_version: 2; set it, "
                           "or use fsdp_sharding_strategy: HYBRID_SHARD");
  }
  attempt([&] { translate_stages(parallelism, kStages, ranks); });
  attempt([&] { check_mesh(parallelism, replicate, shard, ranks); });
  if (shard == 1 && replicate > 1) {
    replicate_only(fsdp, parallelism, choice);
  } else {
    if (choice.row == kNoShard && shard > 1) {
      fsdp.refuse(choice.key, "NO_SHARD contradicts parallelism_config_dp_shard_size ", shard,
                  "; remove one of them");
    }
    set_strategy(fsdp, choice, replicate > 1 ? choice.row->hybrid : choice.row->flat);
    parallelism.set(kReplicate, "replicas", replicate, "", "Accelerate's default is 1");
    if (replicate > 1) parallelism.honour(kReplicate, "strategy", choice.row->hybrid);
  }
  if (parallelism.has(kShard)) {
    parallelism.agree(kShard, replicate == 1 && shard == 1
                                  ? "a mesh of ones is none: all ranks shard"
                                  : "the ranks of a replica");
  }
  parallelism.leave_unused("says nothing of the mesh", Told::kByExplain);
}

/// Without a mesh, HYBRID_SHARD shards inside a machine and replicates across.
void apply_machines(Section& fsdp, const Choice& choice, std::int64_t ranks,
                    std::int64_t machines) {
  if (!choice.row->replicates) {
    set_strategy(fsdp, choice, choice.row->flat);
    return;
  }
  if (ranks % machines != 0) {
    fsdp.refuse(choice.key, ranks, " ranks cannot be divided evenly over ", machines,
                " machines; change num_processes or num_machines");
  }
  fsdp.honour(choice.key, "strategy", choice.row->hybrid);
  if (machines == 1) {
    fsdp.translate(choice.key, "replicas", 1,
                   "it replicates across machines, and num_machines is 1, so there is one replica; "
                   "give --replicas for more");
  } else {
    fsdp.honour(choice.key, "replicas", machines);
  }
}

/// Names of layers that the model lacks. They belong to another model, in which they make a layer
/// each.
std::vector<std::string> other_block_classes(const std::string& names) {
  const std::vector<std::string> blocks = block_class_names();
  std::vector<std::string> others;
  for (const std::string& part : split_text(names, ',')) {
    std::string name = trimmed(part);
    const bool known = std::ranges::find(blocks, name) != blocks.end();
    if (!name.empty() && !known) others.push_back(std::move(name));
  }
  return others;
}

void translate_block_classes(Section& fsdp, const char* key) {
  const auto others = other_block_classes(fsdp.text(key).value_or(""));
  if (others.empty()) {
    fsdp.honour(key, "wrap", "layer");
  } else {
    fsdp.translate(key, "wrap", "layer",
                   concat(quoted(joined(others)), others.size() > 1 ? " are layers" : " is a layer",
                          " of another model; here each of the model's blocks is a unit"));
  }
}

void translate_wrap(Section& fsdp) {
  constexpr const char* kPolicy = "fsdp_auto_wrap_policy";
  constexpr const char* kClasses = "fsdp_transformer_layer_cls_to_wrap";
  constexpr const char* kSize = "fsdp_min_num_params";
  const std::string policy = fsdp.text(kPolicy).value_or("NO_WRAP");
  const bool layers = policy == "TRANSFORMER_BASED_WRAP" || policy == "1";
  const bool size = policy == "SIZE_BASED_WRAP" || policy == "2";
  if (policy.size() == 1) {
    fsdp.differ(kPolicy, "Accelerate refuses the numbers that its documentation shows here");
  }
  if (fsdp.has(kClasses) && layers) {
    translate_block_classes(fsdp, kClasses);
  } else if (fsdp.has(kClasses)) {
    fsdp.no_effect(kClasses, "only TRANSFORMER_BASED_WRAP reads it, as in Accelerate");
  }
  if (!fsdp.has(kPolicy)) {
    fsdp.derive(kPolicy, "wrap", "none",
                "Accelerate's default is NO_WRAP: the whole model is gathered at once; to gather "
                "layer by layer, use TRANSFORMER_BASED_WRAP",
                Told::kByRun);
  } else if (layers) {
    fsdp.honour(kPolicy, "wrap", "layer");
  } else if (!size) {
    fsdp.honour(kPolicy, "wrap", "none");
  } else {
    const std::int64_t numel = fsdp.integer(kSize).value_or(100'000'000);
    const std::string wrap = numel == 0 ? "none" : concat("size:", numel);
    fsdp.honour(kPolicy, "wrap", wrap);
    if (fsdp.has(kSize)) {
      fsdp.honour(kSize, "wrap", wrap);
      const std::string& written = fsdp.node(kSize)->text;
      if (written.find_first_not_of("0123456789") != std::string::npos) {
        fsdp.differ(kSize, "Accelerate refuses a number that is not written in digits");
      }
    }
    fsdp.differ(kPolicy,
                "FSDP wraps modules above that size; here successive layers make a unit of at "
                "least that size",
                Told::kByExplain);
    return;
  }
  if (fsdp.has(kSize)) fsdp.no_effect(kSize, "only SIZE_BASED_WRAP reads it, as in Accelerate");
}

void translate_prefetch(Section& fsdp, std::int64_t version) {
  constexpr const char* kBackward = "fsdp_backward_prefetch";
  constexpr const char* kLegacy = "fsdp_backward_prefetch_policy";
  constexpr const char* kForward = "fsdp_forward_prefetch";
  const char* key = fsdp.has(kBackward) ? kBackward : kLegacy;
  if (fsdp.has(kBackward) && fsdp.has(kLegacy)) {
    fsdp.no_effect(kLegacy, "fsdp_backward_prefetch decides", Told::kByRun);
  }
  if (const auto policy = fsdp.text(key)) {
    const bool ahead = *policy == "BACKWARD_PRE" || *policy == "1";
    fsdp.honour(key, "prefetch_backward", ahead ? 1 : 0);
    if (*policy == "3") fsdp.differ(key, "Accelerate refuses the number 3; here it is NO_PREFETCH");
    if (version == 2 && !ahead) {
      fsdp.differ(key, "FSDP2 ignores the key and always gathers ahead");
    }
    if (!fsdp.has(kBackward)) {
      fsdp.differ(key, concat("Accelerate 1.0 and later ignore this old name, so FSDP1 gathers "
                              "nothing ahead; here it is fsdp_backward_prefetch: ",
                              *policy));
    }
  } else if (version == 1) {
    fsdp.derive(
        kBackward, "prefetch_backward", 1,
        "FSDP1 then gathers nothing ahead in backward; here the default stays, which changes "
        "no result",
        Told::kByRun);
  }
  if (const auto ahead = fsdp.flag(kForward)) {
    if (version == 2) {
      fsdp.differ(
          kForward,
          concat("FSDP2 under Accelerate ignores the key", *ahead ? "; here it is honoured" : ""),
          told_if(*ahead));
    }
    if (*ahead) {
      fsdp.honour(kForward, "prefetch_forward", 1);
    } else {
      fsdp.no_effect(kForward,
                     "FSDP's host runs ahead and gathers early without it; here prefetch_forward "
                     "says how far");
    }
  }
}

/// Its ranks would get no weights.
void tell_loading(Section& fsdp) {
  constexpr const char* kLoading = "fsdp_cpu_ram_efficient_loading";
  constexpr const char* kSync = "fsdp_sync_module_states";
  if (fsdp.flag(kLoading).value_or(true) && fsdp.flag(kSync) == false) {
    fsdp.differ(kSync, concat("Accelerate refuses false unless ", kLoading, " is false, too"));
  }
}

void translate_state_dict(Section& fsdp, std::int64_t version, const KnownSettings& known) {
  constexpr const char* kType = "fsdp_state_dict_type";
  const auto type = fsdp.text(kType);
  if (!type) {
    if (version == 1) {
      fsdp.absent(kType,
                  "Accelerate's default is FULL_STATE_DICT; here it is sharded unless "
                  "--state-dict-type full is given");
    }
    return;
  }
  const bool local = *type == "LOCAL_STATE_DICT" || *type == "2";
  if (version == 2 && local) {
    fsdp.refuse(kType, "FSDP2 has no LOCAL_STATE_DICT; use SHARDED_STATE_DICT or FULL_STATE_DICT");
  }
  translate_state_dict_type(fsdp, kType, *type == "FULL_STATE_DICT" || *type == "1", known,
                            local ? "every rank writes its own part, as there; any number of ranks "
                                    "can read it, not only as many"
                                  : "");
}

}  // namespace

bool is_axis_refused(const Section& parallelism) {
  return std::ranges::any_of(
      std::array{kReplicate, kShard, "parallelism_config_tp_size", "parallelism_config_cp_size",
                 "parallelism_config_sp_size", kStages},
      [&](const char* key) { return parallelism.is_refused(key); });
}

void translate_stages(Section& section, std::string_view key, std::int64_t ranks) {
  const auto stages = section.integer(key);
  if (!stages) return;
  if (ranks != kUnknownRanks && ranks % *stages != 0) {
    section.refuse_for({section.with(key, 1)}, key, "is ", *stages, ", which does not divide ",
                       ranks, " ranks; change it or num_processes");
  }
  section.honour(key, "pipeline", *stages);
  if (key == kStages) section.differ(key, "Accelerate 1.15 has no such key", Told::kByExplain);
}

void translate_fsdp(Section& fsdp, Section* parallelism, std::int64_t ranks, std::int64_t machines,
                    const KnownSettings& known) {
  const std::int64_t version = fsdp.integer("fsdp_version").value_or(1);
  if (fsdp.has("fsdp_version")) {
    fsdp.agree("fsdp_version", "tells how to read the other keys");
  }
  attempt([&] {
    const Choice choice = version == 2 ? choose_version_2(fsdp) : choose_version_1(fsdp);
    if (parallelism != nullptr) {
      apply_mesh(fsdp, *parallelism, choice, version, ranks);
    } else {
      apply_machines(fsdp, choice, ranks, machines);
    }
  });
  translate_wrap(fsdp);
  translate_prefetch(fsdp, version);
  attempt([&] { translate_state_dict(fsdp, version, known); });
  tell_loading(fsdp);
  if (const auto offload = fsdp.flag("fsdp_offload_params")) {
    for (const char* setting : {"offload_parameters", "offload_optimizer"}) {
      fsdp.honour("fsdp_offload_params", setting, *offload ? "host" : "none");
    }
    if (*offload) {
      fsdp.differ("fsdp_offload_params",
                  "FSDP keeps the sharded gradients on the host, too; here they stay on the "
                  "device");
    }
  }
  const auto recompute = fsdp.flag("fsdp_activation_checkpointing");
  if (recompute) {
    fsdp.honour("fsdp_activation_checkpointing", "recompute", *recompute ? "full" : "none");
  }
  constexpr const char* kOffloads = "fsdp_activation_checkpointing_offload";
  if (const auto offload = fsdp.flag(kOffloads)) {
    const bool recomputes = recompute.value_or(false);
    fsdp.honour(kOffloads, "offload_activations", *offload && recomputes ? "host" : "none");
    if (*offload && !recomputes) {
      fsdp.differ(kOffloads, "has an effect only with fsdp_activation_checkpointing: true");
    }
  }
}

}  // namespace tessera::compat

namespace tessera {

std::vector<BlockClass> block_classes() {
  return {{"GPT2Block", "GPT-2"},
          {"LlamaDecoderLayer", "Llama"},
          {"MistralDecoderLayer", "Mistral"},
          {"Qwen2DecoderLayer", "Qwen2, Qwen2.5"},
          {"Qwen3DecoderLayer", "Qwen3"},
          {"Phi3DecoderLayer", "Phi-3"},
          {"Gemma2DecoderLayer", "Gemma 2"},
          {"Gemma3DecoderLayer", "Gemma 3"},
          {"BertLayer", "BERT"},
          {"GptBlock", ""},
          {"TransformerBlock", ""},
          {"Block", ""}};
}

std::vector<std::string> block_class_names() {
  std::vector<std::string> names;
  for (const BlockClass& one : block_classes()) names.emplace_back(one.name);
  return names;
}

}  // namespace tessera
