#include <limits>

#include "keys.h"

namespace tessera::compat {
namespace {

using enum KeyType;

// clang-format off
constexpr const char* kBuckets = "a unit's gradients are one buffer already; there are no buckets";
constexpr const char* kKernels = "the device decides which kernels update parameters";
constexpr const char* kLog = "the log has it always";
constexpr double kMost = std::numeric_limits<int>::max();
constexpr const char* kPinned = "memory that a GPU copies from is pinned, always";
constexpr const char* kQuantised = "quantised communication (ZeRO++)";
constexpr const char* kRarely = "about how DeepSpeed works inside, not about what it computes";
constexpr const char* kRemove = "remove it";
constexpr const char* kScaling = "only fp16 scales its loss";
constexpr const char* kSetFalse = "set it to false";
constexpr const char* kSizes = "`--micro-batch`, `--accumulate`";
constexpr const char* kSlots = "gathers are bounded by slots; see prefetch_forward";
constexpr const char* kSwitch =
    "does not switch recomputation on, there or here; --recompute full does";
constexpr const char* kTracker =
    "metrics go to files: --tensorboard DIR, --csv FILE or --log FILE writes them, and `python -m tessera.track --to "
    "wandb FILE` sends the last one's to a tracker";

}  // namespace

const std::vector<KeyTable>& deepspeed_key_tables() {
  static const std::vector<KeyTable> tables{
      {"deepspeed", {
      used("train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps", kInteger, kSizes).from(1, kMost).or_auto(),
      used("gradient_clipping", kNumber, "`--clip-norm x`").from(0).or_auto(),
      refused("max_grad_norm", kNumber, "transformers' name of it, which DeepSpeed does not read", "write gradient_clipping").lifted_by("clip_norm"),
      used("zero_optimization", kAny, "read key by key, as below; true: stage 1, false: stage 0"),
      used("fp16", kSection, "`--precision fp16`, and loss scaling by DeepSpeed's rules"),
      used("bf16, bfloat16", kSection, "`--precision bf16`"),
      used("optimizer, scheduler, activation_checkpointing, tensor_parallel, data_types, checkpoint", kSection, kBelow),
      used("communication_data_type", kText, "`--reduce-dtype`").one_of({"fp32", "bf16", "bfp16", "fp16"}),
      quiet("steps_per_print", kAny, "every step is shown"),
      quiet("wall_clock_breakdown, memory_breakdown", kFlag, kLog),
      quiet("dump_state", kFlag, "`tessera explain` prints the settings"),
      refused("prescale_gradients", kFlag, "dividing gradients before they are added", kSetFalse),
      refused("gradient_predivide_factor", kNumber, "dividing gradients before they are added", "set it to 1.0").but({"1.0"}),
      refused("sparse_gradients", kFlag, "sparse gradients", kSetFalse),
      quiet("disable_allgather", kFlag, kRarely),
      quiet("zero_allow_untested_optimizer", kFlag, "every optimizer here works with every stage"),
      quiet("zero_force_ds_cpu_optimizer", kFlag, kKernels),
      quiet("dataloader_drop_last", kFlag, "every micro-batch is whole"),
      refused("fp16_master_weights_and_grads", kFlag, "master weights in fp16", kSetFalse),
      quiet("seq_parallel_communication_data_type", kText, "there is no sequence parallelism"),
      refused("sequence_parallel_size", kInteger, "sequence parallelism", "set it to 1").but({"1"}),
      quiet("aio", kAny, "the file on disk has 8 requests of 1 MiB in flight for each read or write"),
      refused("nebula", kSection, "Nebula's checkpoints", kRemove),
      said("flops_profiler", kSection, "FLOPs and MFU are in the log"),
      said("comms_logger", kSection, "every collective is counted in the log"),
      used("tensorboard", kSection, "`--tensorboard DIR`"),
      used("csv_monitor", kSection, "`--csv FILE`"),
      said("wandb, comet, trackio", kSection, kTracker),
      said("monitor_config", kAny, "DeepSpeed reads tensorboard and csv_monitor without a section around them"),
      quiet("comms_config", kAny, "every collective is counted in the log"),
      quiet("timers", kAny, kLog),
      quiet("log_level", kAny, kRarely),
      quiet("disable_python_gc", kAny, "there is no Python"),
      quiet("vocabulary_size", kAny, "the model or its tokenizer says it"),
      quiet("managed_gradient_accumulation", kAny, "micro-steps accumulate by `--accumulate`"),
      quiet("use_data_before_expert_parallelism", kAny, "there are no experts"),
      refused("gradient_allreduce_op", kText, "gradients that are added and not averaged", "set it to \"mean\"").but({"mean"}),
      refused("expert_parallel", kSection, "expert parallelism", kRemove),
      refused("weight_quantization", kAny, "quantised training", kRemove),
      refused("torch_autocast", kSection, "PyTorch's autocast", "use \"bf16\": {\"enabled\": true} or fp16"),
      refused("amp", kSection, "NVIDIA's Apex", "use \"bf16\": {\"enabled\": true} or fp16"),
      refused("elasticity", kSection, "elastic training", kRemove),
      refused("autotuning", kSection, "DeepSpeed's autotuning", "compare settings with `tessera plan`"),
      refused("hybrid_engine", kSection, "the hybrid engine", kRemove),
      refused("compression_training", kAny, "compression", kRemove),
      refused("data_efficiency", kSection, "data efficiency", kRemove),
      refused("curriculum_learning", kSection, "curriculum learning", kRemove),
      refused("progressive_layer_drop", kSection, "progressive layer drop", kRemove),
      refused("eigenvalue", kSection, "eigenvalues", kRemove),
      refused("quantize_training", kSection, "quantised training", kRemove),
      refused("sparse_attention", kAny, "sparse attention", kRemove),
      refused("pipeline", kAny, "stages as DeepSpeed's PipelineModule makes them", "remove it and write --pipeline for stages, --pipeline-split for partition and --recompute full for activation_checkpoint_interval").lifted_by("pipeline"),
      refused("moe", kAny, "mixtures of experts", kRemove),
      said("compile", kSection, "there is no Python code to compile"), }},
      {"zero_optimization", {
      used("stage", kAny, "`--strategy no_shard`, `zero1`, `zero2`, `full_shard`").one_of({"0", "1", "2", "3", "true", "false"}).or_auto(),
      used("mics_shard_size", kInteger, "`--strategy hybrid_shard` with as many ranks in a replica").or_auto(),
      quiet("mics_hierarchical_params_gather", kFlag, kRarely).or_auto(),
      quiet("contiguous_gradients, use_multi_rank_bucket_allreduce", kFlag, kBuckets).or_auto(),
      quiet("overlap_comm", kFlag, "communication always overlaps computation").or_auto(),
      quiet("reduce_scatter", kFlag, "gradients are reduce-scattered where they are sharded").or_auto(),
      quiet("reduce_bucket_size, allgather_bucket_size", kNumber, kBuckets).or_auto(),
      quiet("allgather_partitions", kFlag, "parameters are gathered with all-gathers").or_auto(),
      quiet("round_robin_gradients", kFlag, "every rank owns an equal part already").or_auto(),
      quiet("ignore_unused_parameters", kFlag, "layers use all their parameters").or_auto(),
      quiet("load_from_fp32_weights", kFlag, "a checkpoint has the fp32 values, and they are what is loaded").or_auto(),
      used("offload_optimizer, offload_param", kSection, kBelow),
      used("cpu_offload", kFlag, "`--offload-optimizer host`"),
      used("cpu_offload_params, cpu_offload_param", kFlag, "`--offload-parameters host`"),
      quiet("cpu_offload_use_pin_memory", kFlag, kPinned),
      quiet("sub_group_size", kNumber, "the optimizer updates a unit at a time").or_auto(),
      quiet("stage3_prefetch_bucket_size, prefetch_bucket_size, stage3_max_live_parameters, max_live_parameters, stage3_max_reuse_distance, max_reuse_distance", kNumber, kSlots).or_auto(),
      quiet("stage3_param_persistence_threshold, param_persistence_threshold, stage3_model_persistence_threshold, model_persistence_threshold", kNumber, "small parameters are gathered with their unit").or_auto(),
      used("stage3_gather_16bit_weights_on_model_save, gather_16bit_weights_on_model_save, stage3_gather_fp16_weights_on_model_save", kFlag, "`--state-dict-type full`, in fp32").or_auto(),
      quiet("stage3_module_granularity_threshold, module_granularity_threshold", kNumber, kSlots),
      quiet("stage3_use_all_reduce_for_fetch_params, stage3_allgather_sequential, use_all_reduce_for_fetch_params, allgather_sequential, parameter_alignment, legacy_stage1, memory_efficient_linear", kFlag, kRarely),
      quiet("compute_grad_norm", kFlag, "the gradient norm is in the log always"),
      refused("zero_hpz_partition_size", kInteger, "a second shard of the parameters (ZeRO++)", "set it to 1, and use --strategy hybrid_shard to gather inside a machine").but({"1"}),
      refused("zero_quantized_weights, zero_quantized_gradients, zero_quantized_nontrainable_weights", kFlag, kQuantised, kSetFalse),
      refused("zeropp_loco_param", kAny, kQuantised, kRemove),
      quiet("elastic_checkpoint", kFlag, "every checkpoint can be read by any number of ranks"),
      quiet("pipeline_loading_checkpoint", kFlag, "every rank reads its own part, all at once"),
      quiet("override_module_apply, log_trace_cache_warnings", kFlag, kRarely),
      quiet("enable_sanity_checks", kFlag, "every schedule is validated"),
      quiet("save_muon_momentum_buffer_in_memory", kFlag, "there is no Muon"),
      refused("zenflow", kAny, "ZenFlow", kRemove),
      refused("leaf_module", kAny, "modules that are gathered as one", kRemove), }},
      {"zero_optimization.offload_optimizer", {
      used("device", kText, "`--offload-optimizer`: host for cpu, disk for nvme").one_of({"none", "cpu", "nvme"}).or_auto(),
      used("ratio", kNumber, "the share in `--offload-optimizer host:SHARE`, at stage 3").from(0, 1),
      used("nvme_path", kText, "`--offload-path`, where device is nvme").or_auto(),
      quiet("buffer_count", kInteger, "see prefetch_disk"),
      quiet("pin_memory", kFlag, kPinned),
      quiet("pipeline_read", kFlag, "what is on disk is read ahead; see prefetch_disk"),
      quiet("pipeline_write", kFlag, "what is on disk is written beside the updates that follow"),
      quiet("fast_init", kFlag, "the file on disk is made whole before the first step"),
      quiet("super_offload", kFlag, "updates can run beside the next step, with exact clipping; see overlap_steps"),
      quiet("cpuadam_cores_perc", kNumber, "updates have the threads of the rank; see threads_per_rank"), }},
      {"zero_optimization.offload_param", {
      used("device", kText, "`--offload-parameters`, at stage 3: host for cpu, disk for nvme").one_of({"none", "cpu", "nvme"}).or_auto(),
      used("nvme_path", kText, "`--offload-path`, where device is nvme").or_auto(),
      quiet("buffer_count", kInteger, "see prefetch_disk"),
      quiet("buffer_size", kNumber, "a buffer on the host is as large as a rank's part of the largest unit"),
      quiet("max_in_cpu", kNumber, "what is on disk stays there, or is on the host: `--offload-parameters disk:SHARE`"),
      quiet("pin_memory", kFlag, kPinned), }},
      {"fp16", {
      used("enabled", kFlag, "`--precision fp16`, `--loss-scale-dialect deepspeed`").or_auto(),
      quiet("auto_cast", kFlag, "inputs are converted to the precision, always").or_auto(),
      used("loss_scale", kNumber, "`--loss-scale x`; 0: dynamic").from(0).or_auto(),
      used("initial_scale_power", kInteger, "`--loss-scale-initial 2^x`").from(0, 127).or_auto(),
      used("loss_scale_window", kInteger, "`--loss-scale-window`").from(1, kMost).or_auto(),
      used("hysteresis", kInteger, "`--loss-scale-hysteresis`").from(1, kMost).or_auto(),
      used("consecutive_hysteresis", kFlag, "`--loss-scale-consecutive-hysteresis`").or_auto(),
      used("min_loss_scale", kNumber, "`--loss-scale-minimum`").from(0).or_auto(),
      quiet("opt_level", kText, "it is Apex's, which DeepSpeed does not use either").or_auto(),
      refused("fp16_master_weights_and_grads", kFlag, "master weights in fp16", kSetFalse), }},
      {"bf16", {
      used("enabled", kFlag, "`--precision bf16`").or_auto(),
      quiet("auto_cast, consecutive_hysteresis", kFlag, kScaling).or_auto(),
      quiet("loss_scale, initial_scale_power, loss_scale_window, hysteresis, min_loss_scale", kNumber, kScaling).or_auto(),
      quiet("opt_level", kText, kScaling).or_auto(),
      quiet("immediate_grad_update", kFlag, kRarely),
      quiet("check_grad_overflow", kFlag, "a loss that is not finite stops the run; see allow_non_finite"),
      refused("bf16_master_weights_and_grads", kFlag, "master weights in bf16", kSetFalse),
      refused("bf16_optimizer_states", kFlag, "optimizer states in bf16", kSetFalse),
      refused("fp16_master_weights_and_grads", kFlag, "master weights in fp16", kSetFalse), }},
      {"optimizer", {
      used("type", kText, "`--optimizer adamw`, `sgd` or `lion`"),
      used("params", kSection, kBelow),
      quiet("legacy_fusion", kFlag, kRarely), }},
      {"optimizer.params", {
      used("lr", kNumber, "`--learning-rate`").from(0).or_auto(),
      used("betas", kAny, "`--beta1`, `--beta2`").or_auto(),
      used("eps", kNumber, "`--epsilon`").from(0).or_auto(),
      used("weight_decay", kNumber, "`--weight-decay`").from(0).or_auto(),
      used("adam_w_mode", kFlag, "AdamW; false is refused with weight decay"),
      used("momentum", kNumber, "`--momentum`, of SGD").from(0),
      used("nesterov", kFlag, "`--nesterov`, of SGD"),
      used("max_grad_norm", kNumber, "`--clip-norm x`, without gradient_clipping").from(0),
      refused("dampening", kNumber, "dampening of SGD's momentum", "set it to 0").but({"0", "0.0"}),
      refused("maximize", kFlag, "a loss that is maximised", kSetFalse),
      refused("fp32_optimizer_states", kFlag, "optimizer states in 16 bits", "set it to true").but({"true"}),
      quiet("foreach, torch_adam, fused", kFlag, kKernels),
      quiet("differentiable", kFlag, kRarely),
      refused("bias_correction", kFlag, "AdamW without bias correction", "set it to true").but({"true"}),
      refused("amsgrad", kFlag, "AMSGrad", kSetFalse), }},
      {"scheduler", {
      used("type", kText, "`--learning-rate-schedule`"),
      used("params", kSection, kBelow), }},
      {"scheduler.params", {
      used("warmup_min_lr, warmup_min_ratio", kNumber, "no effect: the warm-up begins near 0").from(0).or_auto(),
      used("warmup_max_lr", kNumber, "`--learning-rate`").from(0).or_auto(),
      used("warmup_num_steps", kInteger, "`--warmup-steps`").from(0).or_auto(),
      used("warmup_type", kText, "a straight line always").one_of({"log", "linear"}).or_auto(),
      used("total_num_steps", kInteger, "`--steps`").from(1).or_auto(),
      used("cos_min_ratio", kNumber, "`--minimum-learning-rate`").or_auto(),
      refused("last_batch_iteration", kInteger, "starting in the middle of a schedule", kRemove).but({"-1"}), }},
      {"tensorboard, csv_monitor", {
      used("enabled", kFlag, "whether there is one"),
      used("output_path", kText, "`--tensorboard DIR`, `--csv FILE`"),
      used("job_name", kText, "`--tensorboard DIR`, `--csv FILE`"), }},
      {"activation_checkpointing", {
      quiet("partition_activations", kFlag, "activations are divided among tensor-parallel ranks, of which there is one"),
      refused("cpu_checkpointing", kFlag, "offloading the parts of activations that tensor-parallel ranks hold", "set it to false and use --recompute full --offload-activations host"),
      quiet("contiguous_memory_optimization, synchronize_checkpoint_boundary", kFlag, kSwitch),
      quiet("number_checkpoints", kAny, kSwitch),
      quiet("profile", kFlag, kSwitch), }},
      {"tensor_parallel", {
      refused("autotp_size", kInteger, "tensor parallelism", "set it to 1").but({"0", "1"}), }},
      {"data_types", {
      refused("grad_accum_dtype", kText, "gradients that are added up in less than fp32", "set it to \"fp32\"").but({"fp32"}), }},
      {"checkpoint", {
      quiet("tag_validation", kText, "a checkpoint is named by its step, which all ranks share").one_of({"Ignore", "Warn", "Fail"}),
      refused("load_universal", kFlag, "DeepSpeed's universal checkpoints", "set it to false: every checkpoint here can be resumed by any number of ranks, with any strategy"),
      refused("use_node_local_storage", kFlag, "checkpoints in parts on each machine's own disk", "set it to false and give --save a folder that all machines share"),
      quiet("parallel_write", kAny, "every rank writes its own part, always"),
      quiet("writer", kAny, "threads write the files while steps go on; see --save-async"), }},
  };
  return tables;
}
// clang-format on

const KeyTable& table_of(std::string_view section) {
  for (const auto* tables : {&accelerate_key_tables(), &deepspeed_key_tables()}) {
    for (const KeyTable& table : *tables) {
      if (section == table.section) return table;
    }
  }
  fail(ErrorCode::kInternal, "there is no table of the keys of ", section);
}

}  // namespace tessera::compat
