#include "foreign/deepspeed_keys.h"

namespace tessera::foreign {
namespace {

using enum KeyType;
using enum KeyUse;

constexpr const char* kBuckets = "a unit's gradients are one buffer already; there are no buckets";
constexpr const char* kSlots = "gathers are bounded by slots; see prefetch_forward";
constexpr const char* kRarely = "about how DeepSpeed works inside, not about what it computes";
constexpr const char* kNoOffload = "nothing is offloaded";
constexpr const char* kLog = "the log has it always";
constexpr const char* kQuantised = "quantised communication (ZeRO++)";
constexpr const char* kSetFalse = "set it to false";
constexpr const char* kScaling = "only fp16 scales its loss";
constexpr const char* kRemove = "remove it";

}  // namespace

const std::vector<KeyRule>& deepspeed_keys() {
  constexpr const char* kUseFiles =
      "set it to false and use --tensorboard DIR, --csv FILE or --log FILE";
  static const std::vector<KeyRule> table{
      {"train_batch_size", kInteger, kUsed, "", {}, "", true},
      {"train_micro_batch_size_per_gpu", kInteger, kUsed, "", {}, "", true},
      {"gradient_accumulation_steps", kInteger, kUsed, "", {}, "", true},
      {"gradient_clipping", kNumber, kUsed, "", {}, "", true},
      {"zero_optimization", kSection, kUsed},
      {"fp16", kSection, kUsed},
      {"bf16", kSection, kUsed},
      {"bfloat16", kSection, kUsed},
      {"optimizer", kSection, kUsed},
      {"scheduler", kSection, kUsed},
      {"communication_data_type", kText, kUsed, "", {"fp32", "bf16", "bfp16", "fp16"}},
      {"activation_checkpointing", kSection, kUsed},
      {"tensor_parallel", kSection, kUsed},
      {"data_types", kSection, kUsed},
      {"checkpoint", kSection, kUsed},
      {"steps_per_print", kAny, kQuiet, "every step is shown"},
      {"wall_clock_breakdown", kFlag, kQuiet, kLog},
      {"memory_breakdown", kFlag, kQuiet, kLog},
      {"dump_state", kFlag, kQuiet, "`tessera explain` prints the settings"},
      {"prescale_gradients",
       kFlag,
       kRefused,
       "dividing gradients before they are added",
       {},
       kSetFalse},
      {"gradient_predivide_factor",
       kNumber,
       kRefused,
       "dividing gradients before they are added",
       {"1.0"},
       "set it to 1.0"},
      {"sparse_gradients", kFlag, kRefused, "sparse gradients", {}, kSetFalse},
      {"disable_allgather", kFlag, kQuiet, kRarely},
      {"zero_allow_untested_optimizer", kFlag, kQuiet,
       "every optimizer here works with every stage"},
      {"zero_force_ds_cpu_optimizer", kFlag, kQuiet, "there is one AdamW, with kernels per device"},
      {"dataloader_drop_last", kFlag, kQuiet, "every micro-batch is whole"},
      {"fp16_master_weights_and_grads", kFlag, kRefused, "master weights in fp16", {}, kSetFalse},
      {"seq_parallel_communication_data_type", kText, kQuiet, "there is no sequence parallelism"},
      {"sequence_parallel_size", kInteger, kRefused, "sequence parallelism", {"1"}, "set it to 1"},
      {"aio", kAny, kQuiet, kNoOffload},
      {"nebula", kSection, kRefused, "Nebula's checkpoints", {}, kRemove},
      {"flops_profiler", kSection, kSaid, "FLOPs and MFU are in the log"},
      {"comms_logger", kSection, kSaid, "every collective is counted in the log"},
      {"tensorboard", kSection, kUsed},
      {"csv_monitor", kSection, kUsed},
      {"wandb", kSection, kRefused, "Weights & Biases", {}, kUseFiles},
      {"comet", kSection, kRefused, "Comet", {}, kUseFiles},
      {"trackio", kSection, kRefused, "Trackio", {}, kUseFiles},
      {"torch_autocast",
       kSection,
       kRefused,
       "PyTorch's autocast",
       {},
       "use \"bf16\": {\"enabled\": true}"},
      {"amp", kSection, kRefused, "NVIDIA's Apex", {}, "use \"bf16\": {\"enabled\": true}"},
      {"elasticity", kSection, kRefused, "elastic training", {}, kRemove},
      {"autotuning",
       kSection,
       kRefused,
       "DeepSpeed's autotuning",
       {},
       "compare settings with `tessera plan`"},
      {"hybrid_engine", kSection, kRefused, "the hybrid engine", {}, kRemove},
      {"compression_training", kAny, kRefused, "compression", {}, kRemove},
      {"data_efficiency", kSection, kRefused, "data efficiency", {}, kRemove},
      {"curriculum_learning", kSection, kRefused, "curriculum learning", {}, kRemove},
      {"progressive_layer_drop", kSection, kRefused, "progressive layer drop", {}, kRemove},
      {"eigenvalue", kSection, kRefused, "eigenvalues", {}, kRemove},
      {"quantize_training", kSection, kRefused, "quantised training", {}, kRemove},
      {"sparse_attention", kAny, kRefused, "sparse attention", {}, kRemove},
      {"pipeline", kAny, kRefused, "pipeline parallelism", {}, kRemove},
      {"moe", kAny, kRefused, "mixtures of experts", {}, kRemove},
      {"compile", kSection, kSaid, "there is no Python code to compile"},
  };
  return table;
}

const std::vector<KeyRule>& zero_keys() {
  constexpr const char* kAddRanks = "set the device to none and use more ranks";
  static const std::vector<KeyRule> table{
      {"stage", kAny, kUsed, "", {"0", "1", "2", "3", "true", "false"}, "", true},
      {"mics_shard_size", kInteger, kUsed, "", {}, "", true},
      {"mics_hierarchical_params_gather", kFlag, kQuiet, kRarely, {}, "", true},
      {"contiguous_gradients", kFlag, kQuiet, kBuckets, {}, "", true},
      {"overlap_comm", kFlag, kQuiet, "communication always overlaps computation", {}, "", true},
      {"reduce_scatter",
       kFlag,
       kQuiet,
       "gradients are reduce-scattered where they are sharded",
       {},
       "",
       true},
      {"reduce_bucket_size", kNumber, kQuiet, kBuckets, {}, "", true},
      {"allgather_partitions",
       kFlag,
       kQuiet,
       "parameters are gathered with all-gathers",
       {},
       "",
       true},
      {"allgather_bucket_size", kNumber, kQuiet, kBuckets, {}, "", true},
      {"use_multi_rank_bucket_allreduce", kFlag, kQuiet, kBuckets, {}, "", true},
      {"round_robin_gradients",
       kFlag,
       kQuiet,
       "every rank owns an equal part already",
       {},
       "",
       true},
      {"ignore_unused_parameters", kFlag, kQuiet, "layers use all their parameters", {}, "", true},
      {"load_from_fp32_weights", kFlag, kQuiet, "about resuming, not about training", {}, "", true},
      {"offload_optimizer", kSection, kUsed},
      {"offload_param", kSection, kUsed},
      {"cpu_offload", kFlag, kRefused, "offloading optimizer state", {}, kAddRanks},
      {"cpu_offload_params", kFlag, kRefused, "offloading parameters", {}, kAddRanks},
      {"cpu_offload_param", kFlag, kRefused, "offloading parameters", {}, kAddRanks},
      {"cpu_offload_use_pin_memory", kFlag, kQuiet, kNoOffload},
      {"sub_group_size", kNumber, kQuiet, "the optimizer updates a unit at a time", {}, "", true},
      {"stage3_prefetch_bucket_size", kNumber, kQuiet, kSlots, {}, "", true},
      {"prefetch_bucket_size", kNumber, kQuiet, kSlots, {}, "", true},
      {"stage3_param_persistence_threshold",
       kNumber,
       kQuiet,
       "small parameters are gathered with their unit",
       {},
       "",
       true},
      {"param_persistence_threshold",
       kNumber,
       kQuiet,
       "small parameters are gathered with their unit",
       {},
       "",
       true},
      {"stage3_model_persistence_threshold",
       kNumber,
       kQuiet,
       "small parameters are gathered with their unit",
       {},
       "",
       true},
      {"stage3_max_live_parameters", kNumber, kQuiet, kSlots, {}, "", true},
      {"max_live_parameters", kNumber, kQuiet, kSlots, {}, "", true},
      {"stage3_max_reuse_distance", kNumber, kQuiet, kSlots, {}, "", true},
      {"max_reuse_distance", kNumber, kQuiet, kSlots, {}, "", true},
      {"stage3_gather_16bit_weights_on_model_save",
       kFlag,
       kQuiet,
       "says how DeepSpeed saves, not how it trains",
       {},
       "",
       true},
      {"stage3_gather_fp16_weights_on_model_save",
       kFlag,
       kQuiet,
       "says how DeepSpeed saves, not how it trains",
       {},
       "",
       true},
      {"stage3_module_granularity_threshold", kNumber, kQuiet, kSlots},
      {"stage3_use_all_reduce_for_fetch_params", kFlag, kQuiet, kRarely},
      {"stage3_allgather_sequential", kFlag, kQuiet, kRarely},
      {"zero_hpz_partition_size",
       kInteger,
       kRefused,
       "a second shard of the parameters (ZeRO++)",
       {"1"},
       "set it to 1, and use --strategy hybrid_shard to gather inside a machine"},
      {"zero_quantized_weights", kFlag, kRefused, kQuantised, {}, kSetFalse},
      {"zero_quantized_gradients", kFlag, kRefused, kQuantised, {}, kSetFalse},
      {"zero_quantized_nontrainable_weights", kFlag, kRefused, kQuantised, {}, kSetFalse},
      {"zeropp_loco_param", kAny, kRefused, kQuantised, {}, kRemove},
      {"legacy_stage1", kFlag, kQuiet, kRarely},
      {"elastic_checkpoint", kFlag, kQuiet, "about resuming, not about training"},
      {"memory_efficient_linear", kFlag, kQuiet, kRarely},
      {"pipeline_loading_checkpoint", kFlag, kQuiet, "about resuming, not about training"},
      {"override_module_apply", kFlag, kQuiet, kRarely},
      {"log_trace_cache_warnings", kFlag, kQuiet, kRarely},
      {"enable_sanity_checks", kFlag, kQuiet, "every schedule is validated"},
      {"save_muon_momentum_buffer_in_memory", kFlag, kQuiet, "there is no Muon"},
      {"zenflow", kAny, kRefused, "ZenFlow", {}, kRemove},
      {"leaf_module", kAny, kRefused, "modules that are gathered whole", {}, kRemove},
  };
  return table;
}

const std::vector<KeyRule>& zero_offload_keys() {
  static const std::vector<KeyRule> table{
      {"device",
       kText,
       kRefused,
       "offloading",
       {"none"},
       "set it to \"none\" and use more ranks",
       true},
      {"nvme_path", kText, kQuiet, kNoOffload, {}, "", true},
      {"buffer_count", kInteger, kQuiet, kNoOffload},
      {"buffer_size", kNumber, kQuiet, kNoOffload},
      {"max_in_cpu", kNumber, kQuiet, kNoOffload},
      {"pin_memory", kFlag, kQuiet, kNoOffload},
      {"pipeline_read", kFlag, kQuiet, kNoOffload},
      {"pipeline_write", kFlag, kQuiet, kNoOffload},
      {"fast_init", kFlag, kQuiet, kNoOffload},
      {"ratio", kNumber, kQuiet, kNoOffload},
      {"super_offload", kFlag, kQuiet, kNoOffload},
      {"cpuadam_cores_perc", kNumber, kQuiet, kNoOffload},
  };
  return table;
}

const std::vector<KeyRule>& monitor_keys() {
  static const std::vector<KeyRule> table{
      {"enabled", kFlag, kUsed}, {"output_path", kText, kUsed}, {"job_name", kText, kUsed}};
  return table;
}

const std::vector<KeyRule>& half_precision_keys() {
  static const std::vector<KeyRule> table{
      {"enabled", kFlag, kUsed, "", {}, "", true},
      {"auto_cast", kFlag, kQuiet, kScaling, {}, "", true},
      {"loss_scale", kNumber, kQuiet, kScaling, {}, "", true},
      {"initial_scale_power", kNumber, kQuiet, kScaling, {}, "", true},
      {"loss_scale_window", kNumber, kQuiet, kScaling, {}, "", true},
      {"hysteresis", kNumber, kQuiet, kScaling, {}, "", true},
      {"consecutive_hysteresis", kFlag, kQuiet, kScaling, {}, "", true},
      {"min_loss_scale", kNumber, kQuiet, kScaling, {}, "", true},
      {"opt_level", kText, kQuiet, kScaling, {}, "", true},
      {"immediate_grad_update", kFlag, kQuiet, kRarely},
      {"check_grad_overflow", kFlag, kQuiet,
       "a loss that is not finite stops the run; see allow_non_finite"},
      {"bf16_master_weights_and_grads", kFlag, kRefused, "master weights in bf16", {}, kSetFalse},
      {"bf16_optimizer_states", kFlag, kRefused, "optimizer states in bf16", {}, kSetFalse},
      {"fp16_master_weights_and_grads", kFlag, kRefused, "master weights in fp16", {}, kSetFalse},
  };
  return table;
}

const std::vector<KeyRule>& optimizer_keys() {
  static const std::vector<KeyRule> table{
      {"type", kText, kUsed},
      {"params", kSection, kUsed},
      {"legacy_fusion", kFlag, kQuiet, kRarely},
  };
  return table;
}

const std::vector<KeyRule>& optimizer_params_keys() {
  static const std::vector<KeyRule> table{
      {"lr", kNumber, kUsed, "", {}, "", true},
      {"betas", kAny, kUsed, "", {}, "", true},
      {"eps", kNumber, kUsed, "", {}, "", true},
      {"weight_decay", kNumber, kUsed, "", {}, "", true},
      {"adam_w_mode", kFlag, kUsed},
      {"torch_adam", kFlag, kQuiet, "there is one AdamW, with kernels per device"},
      {"fused", kFlag, kQuiet, "there is one AdamW, with kernels per device"},
      {"bias_correction",
       kFlag,
       kRefused,
       "AdamW without bias correction",
       {"true"},
       "set it to true"},
      {"amsgrad", kFlag, kRefused, "AMSGrad", {}, kSetFalse},
  };
  return table;
}

const std::vector<KeyRule>& scheduler_keys() {
  static const std::vector<KeyRule> table{
      {"type", kText, kUsed},
      {"params", kSection, kUsed},
  };
  return table;
}

const std::vector<KeyRule>& scheduler_params_keys() {
  static const std::vector<KeyRule> table{
      {"warmup_min_lr", kNumber, kUsed, "", {}, "", true},
      {"warmup_max_lr", kNumber, kUsed, "", {}, "", true},
      {"warmup_num_steps", kInteger, kUsed, "", {}, "", true},
      {"warmup_type", kText, kUsed, "", {"log", "linear"}, "", true},
      {"total_num_steps", kInteger, kUsed, "", {}, "", true},
      {"warmup_min_ratio", kNumber, kUsed, "", {}, "", true},
      {"cos_min_ratio", kNumber, kUsed, "", {}, "", true},
      {"last_batch_iteration",
       kInteger,
       kRefused,
       "starting in the middle of a schedule",
       {"-1"},
       kRemove},
  };
  return table;
}

const std::vector<KeyRule>& activation_checkpointing_keys() {
  constexpr const char* kSwitch =
      "does not switch recomputation on, there or here; --recompute full does";
  static const std::vector<KeyRule> table{
      {"partition_activations",
       kFlag,
       kRefused,
       "activations cut over tensor-parallel ranks",
       {},
       kSetFalse},
      {"cpu_checkpointing",
       kFlag,
       kRefused,
       "offloading activations",
       {},
       "set it to false and use --recompute full"},
      {"contiguous_memory_optimization", kFlag, kQuiet, kSwitch},
      {"number_checkpoints", kAny, kQuiet, kSwitch},
      {"synchronize_checkpoint_boundary", kFlag, kQuiet, kSwitch},
      {"profile", kFlag, kQuiet, kSwitch},
  };
  return table;
}

const std::vector<KeyRule>& tensor_parallel_keys() {
  static const std::vector<KeyRule> table{
      {"autotp_size", kInteger, kRefused, "tensor parallelism", {"0", "1"}, "set it to 1"},
  };
  return table;
}

const std::vector<KeyRule>& data_types_keys() {
  static const std::vector<KeyRule> table{
      {"grad_accum_dtype",
       kText,
       kRefused,
       "gradients that are added up in less than fp32",
       {"fp32"},
       "set it to \"fp32\""},
  };
  return table;
}

const std::vector<KeyRule>& checkpoint_keys() {
  constexpr const char* kSaving = "about saving, not about training";
  static const std::vector<KeyRule> table{
      {"tag_validation", kText, kQuiet, kSaving},
      {"load_universal", kFlag, kRefused, "DeepSpeed's universal checkpoints", {}, kSetFalse},
      {"use_node_local_storage", kFlag, kQuiet, kSaving},
      {"parallel_write", kAny, kQuiet, kSaving},
      {"writer", kAny, kQuiet, kSaving},
  };
  return table;
}

}  // namespace tessera::foreign
