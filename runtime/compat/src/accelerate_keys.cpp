#include "keys.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::compat {
namespace {

using enum KeyType;

// clang-format off
constexpr const char* kCompiled = "there is no Python code to compile";
constexpr const char* kEachLayer = "each layer is recomputed from its input";
constexpr const char* kExperts = "experts, which models here have not";
constexpr const char* kLaunch = "`launch --config FILE` reads it";
constexpr const char* kLauncher = "'tessera launch', mpirun or srun starts the processes";
constexpr const char* kMsAmp = "is of MS-AMP, whose collectives and optimizer states of 8 bits are not there";
constexpr double kMostHistory = 1 << 20;
constexpr const char* kOneMeeting = "processes have one way to find each other";
constexpr const char* kOnlyAxis = "belongs to an axis that is not there";
constexpr const char* kShardInstead =
    "set it to 1 and shard over those ranks: parallelism_config_dp_shard_size";
constexpr const char* kTpu = "only for TPUs";

std::vector<const char*> dynamo_backends() {
  return {"NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS", "OFI", "FX2TRT",
          "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "IPEX", "TVM", "HPU_BACKEND", "NEURON"};
}

}  // namespace

// They follow Accelerate 1.15 and what its older versions wrote.
const std::vector<KeyTable>& accelerate_key_tables() {
  static const std::vector<KeyTable> tables{
      {"accelerate", {
      refused("compute_environment", kText, "jobs in SageMaker", "run on the machine itself, with LOCAL_MACHINE").but({"LOCAL_MACHINE"}).only({"AMAZON_SAGEMAKER"}),
      used("distributed_type", kAny, "`NO`, `MULTI_CPU`, `MULTI_GPU`: `--strategy no_shard`; `FSDP`, `DEEPSPEED`, `MEGATRON_LM`: what their section asks for; others are refused"),  // YAML reads a bare NO as a boolean.
      used("mixed_precision", kText, "`--precision fp32`, `bf16`, `fp16` or `fp8`, and `--reduce-dtype` with FSDP and DeepSpeed").one_of({"no", "bf16", "fp16", "fp8"}),
      used("fp16", kFlag, "`--precision fp16`; old files have it for mixed_precision"),
      used("num_processes", kInteger, "`launch --config FILE` reads it; without a launcher it is `--ranks`"),
      used("num_machines", kInteger, kLaunch).from(1, kMaxRanks),
      used("machine_rank", kInteger, kLaunch),
      used("main_process_ip, gpu_ids", kText, kLaunch),
      used("main_process_port", kInteger, kLaunch),
      quiet("rdzv_backend", kText, kOneMeeting).but({"static"}),
      quiet("same_network", kFlag, kOneMeeting),
      used("enable_cpu_affinity", kFlag, "`--bind numa`, also in a file, where Accelerate ignores it"),
      used("use_cpu", kFlag, "`--device cpu`"),
      used("debug", kFlag, "`--check-collectives`"),
      refused("max_grad_norm", kNumber, "clipping, which Accelerate's files do not have", "give --clip-norm").lifted_by("clip_norm"),
      quiet("main_training_function", kText, "names a Python function of notebooks"),
      quiet("downcast_bf16, tpu_name, tpu_zone, tpu_vm, tpu_env, command_file, commands", kAny, kTpu),
      quiet("tpu_use_cluster, tpu_use_sudo", kFlag, kTpu),
      said("dynamo_backend", kText, kCompiled).one_of(dynamo_backends()).but({"NO"}),
      used("dynamo_config, fsdp_config, parallelism_config, deepspeed_config, mpirun_config, megatron_lm_config, fp8_config", kSection, kBelow),
      quiet("ipex_config", kAny, "there is no PyTorch to extend"), }},
      {"fsdp_config", {
      used("fsdp_version", kInteger, "both are read").one_of({"1", "2"}),
      used("fsdp_sharding_strategy", kText, "`--strategy`, in small letters").one_of({"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "1", "2", "3", "4", "5"}),
      used("fsdp_reshard_after_forward", kAny, "`--reshard-after-forward`"),  // A boolean or, in version 1, a strategy.
      used("fsdp_auto_wrap_policy", kText, "`--wrap layer`, `none` or `size:N`").one_of({"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP", "1", "2", "3"}),
      used("fsdp_transformer_layer_cls_to_wrap", kText, "`--wrap layer`, `none` or `size:N`"),
      used("fsdp_min_num_params", kInteger, "`--wrap layer`, `none` or `size:N`").from(0),
      used("fsdp_backward_prefetch, fsdp_backward_prefetch_policy", kText, "`--prefetch-backward K`").one_of({"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "1", "2", "3"}),
      used("fsdp_forward_prefetch", kFlag, "`--prefetch-forward K`"),
      used("fsdp_offload_params", kFlag, "`--offload-parameters host` and `--offload-optimizer host`"),
      used("fsdp_state_dict_type", kText, "`--state-dict-type full` for FULL_STATE_DICT, else `sharded`").one_of(
      {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT", "1", "2", "3"}),
      quiet("fsdp_use_orig_params", kFlag, "parameters keep their names and shapes always"),
      quiet("fsdp_cpu_ram_efficient_loading", kFlag, "every rank reads only its own part of --init and --resume, always"),
      quiet("fsdp_sync_module_states", kFlag, "all ranks compute the same first parameters from the seed"),
      used("fsdp_activation_checkpointing", kFlag, "`--recompute full`"),
      used("fsdp_activation_checkpointing_offload", kFlag, "`--offload-activations host`, with fsdp_activation_checkpointing"),
      refused("fsdp_ignored_modules", kText, "leaving modules out of the sharding", "remove it; parameters of any module can be sharded"),
      quiet("fsdp_limit_all_gathers", kFlag, "gathers are bounded always: a unit is gathered when a slot is free"), }, "fsdp_"},
      {"parallelism_config", {
      used("parallelism_config_dp_replicate_size", kInteger, "`--replicas R`").from(1),
      used("parallelism_config_dp_shard_size", kInteger, "ranks / `--replicas R`").from(1),
      refused("parallelism_config_tp_size", kInteger, "tensor parallelism", kShardInstead).but({"1"}),
      refused("parallelism_config_cp_size", kInteger, "context parallelism", kShardInstead).but({"1"}),
      refused("parallelism_config_sp_size", kInteger, "sequence parallelism", kShardInstead).but({"1"}),
      used("parallelism_config_pp_size", kInteger, "`--pipeline N`, which Accelerate has not").from(1, kMaxRanks),
      quiet("parallelism_config_cp_backend", kText, kOnlyAxis).one_of({"torch"}),
      quiet("parallelism_config_cp_comm_strategy", kText, kOnlyAxis).one_of({"allgather", "alltoall"}),
      quiet("parallelism_config_sp_backend", kText, kOnlyAxis).one_of({"deepspeed"}),
      quiet("parallelism_config_sp_seq_length", kInteger, kOnlyAxis),
      quiet("parallelism_config_sp_seq_length_is_variable", kFlag, kOnlyAxis),
      quiet("parallelism_config_sp_attn_implementation", kText, kOnlyAxis), }, "parallelism_config_", true},
      {"deepspeed_config", {
      used("zero_stage", kInteger, "`--strategy no_shard`, `zero1`, `zero2`, `full_shard`").one_of({"0", "1", "2", "3"}),
      used("gradient_accumulation_steps", kInteger, "`--accumulate N`").from(1).or_auto(),
      used("gradient_clipping", kNumber, "`--clip-norm x`").from(0).or_auto(),
      used("deepspeed_config_file", kText, "`--config FILE`, or left where it is"),
      used("offload_optimizer_device", kText, "`--offload-optimizer`: host for cpu, disk for nvme").one_of({"none", "cpu", "nvme"}),
      used("offload_param_device", kText, "`--offload-parameters`, at stage 3: host for cpu, disk for nvme").one_of({"none", "cpu", "nvme"}),
      used("offload_optimizer_nvme_path", kText, "`--offload-path`, where offload_optimizer_device is nvme"),
      used("offload_param_nvme_path", kText, "`--offload-path`, where offload_param_device is nvme"),
      quiet("zero3_init_flag", kFlag, "there is no second way to build a model"),
      used("zero3_save_16bit_model", kFlag, "`--state-dict-type full`, in fp32"),
      refused("deepspeed_moe_layer_cls_names", kText, "mixtures of experts", "remove it"),
      said("deepspeed_hostfile, deepspeed_inclusion_filter, deepspeed_exclusion_filter", kText, kLauncher),
      quiet("deepspeed_multinode_launcher", kText, kLauncher).one_of(
      {"pdsh", "standard", "openmpi", "mvapich", "mpich", "impi", "slurm", "nossh"}), }},
      {"megatron_lm_config", {
      used("megatron_lm_pp_degree", kInteger, "`--pipeline N`").from(1, kMaxRanks),
      used("megatron_lm_num_micro_batches", kInteger, "`--accumulate N`").from(1),
      used("megatron_lm_gradient_clipping", kNumber, "`--clip-norm x`").from(0),
      used("megatron_lm_use_distributed_optimizer", kFlag, "`--strategy zero1`, else `no_shard`"),
      used("megatron_lm_recompute_activations", kFlag, "`--recompute selective`, else `none`"),
      used("megatron_lm_recompute_granularity", kText, "`--recompute`, in the same words").one_of({"full", "selective"}),
      said("megatron_lm_recompute_method", kText, kEachLayer).one_of({"uniform", "block"}).but({"uniform"}),
      said("megatron_lm_recompute_num_layers", kInteger, kEachLayer).but({"1"}),
      used("megatron_lm_optimizer_cpu_offload", kFlag, "`--offload-optimizer host`"),
      quiet("megatron_lm_overlap_cpu_optimizer_d2h_h2d", kFlag, "copies to and from the host always overlap updates"),
      refused("megatron_lm_tp_degree", kInteger, "tensor parallelism", "set it to 1: megatron_lm_use_distributed_optimizer shards the optimizer over those ranks, distributed_type: FSDP parameters, too").but({"1"}),
      quiet("megatron_lm_sequence_parallelism", kFlag, "it divides activations among tensor-parallel ranks, of which there is one"),
      refused("megatron_lm_context_parallel_size", kInteger, "context parallelism", "set it to 1").but({"1"}),
      refused("megatron_lm_expert_model_parallel_size, megatron_lm_expert_tensor_parallel_size", kInteger, kExperts, "set it to 1").but({"1"}),
      used("megatron_lm_decoder_last_pipeline_num_layers", kInteger, "`--last-rank-layers N`").from(1),
      refused("megatron_lm_use_custom_fsdp", kFlag, "Megatron's FSDP", "set it to false; distributed_type: FSDP shards"),
      refused("megatron_lm_no_load_optim", kFlag, "resuming without the optimizer's state", "set it to false; --init starts from a checkpoint's parameters alone"),
      said("megatron_lm_no_save_optim", kFlag, "checkpoints have the optimizer's state; --export writes the model alone"),
      refused("megatron_lm_eod_mask_loss", kFlag, "a loss that leaves out the ends of documents", "set it to false"),
      quiet("megatron_lm_use_precision_aware_optimizer", kFlag, "the optimizer's state is in fp32 there, too, unless other flags of Megatron-LM say otherwise"),
      quiet("megatron_lm_attention_backend", kFlag, "the device decides which kernels compute attention"),
      quiet("megatron_lm_attention_softmax_in_fp32", kFlag, "softmax is computed in fp32, always"),
      quiet("megatron_lm_calculate_per_token_loss", kFlag, "the loss is averaged over the tokens of the whole step, always"),
      quiet("megatron_lm_use_rotary_position_embeddings", kFlag, "the model says which embeddings of positions it has"),
      refused("megatron_lm_attention_dropout", kNumber, "a dropout of attention alone", "set it to 0 and give --dropout").but({"0.0"}).lifted_by("dropout"),
      refused("megatron_lm_hidden_dropout", kNumber, "a dropout of hidden layers alone", "set it to 0 and give --dropout").but({"0.0"}).lifted_by("dropout"), }, "megatron_lm_", true},
      {"fp8_config", {
      used("fp8_backend", kText, "`--fp8-recipe delayed` for TE, `current` for AO; MSAMP is refused").one_of({"AO", "TE", "MSAMP"}),
      used("fp8_format", kText, "`--fp8-format hybrid` or `e4m3`; E5M2 is refused, as by TransformerEngine").one_of({"HYBRID", "E4M3", "E5M2"}),
      used("fp8_override_linear_precision", kAny, "`--fp8-products`: those that are false"),
      used("fp8_enable_fsdp_float8_all_gather", kFlag, "`--gather-format e4m3`, or `bf16` where it is false"),
      quiet("fp8_pad_inner_dim", kFlag, "matrices of any size are multiplied"),
      used("fp8_amax_history_len", kInteger, "`--fp8-history`, with backend TE").from(1, kMostHistory),
      used("fp8_amax_history_length", kInteger, "`--fp8-history`, with backend TE").from(1, kMostHistory),
      used("fp8_amax_compute_algo", kText, "`--fp8-history-rule`, with backend TE").one_of({"max", "most_recent"}),
      used("fp8_amax_compute_algorithm", kText, "`--fp8-history-rule`, with backend TE").one_of({"max", "most_recent"}),
      used("fp8_margin", kInteger, "`--fp8-margin`, with backend TE").from(0, 64),
      used("fp8_interval", kInteger, "with backend TE 1 alone: histories move on in each step").from(1),
      refused("fp8_use_autocast_during_eval", kFlag, "evaluation in fp8", "set it to false; evaluation is in bf16"),
      refused("fp8_use_mxfp8_block_scaling", kFlag, "scales of blocks of 32 numbers", "set it to false"),
      said("fp8_opt_level", kText, kMsAmp),
      said("fp8_optimization_level", kText, kMsAmp), }, "fp8_"},
      {"dynamo_config", {
      said("dynamo_backend", kText, kCompiled).one_of(dynamo_backends()).but({"NO"}),
      quiet("dynamo_mode", kText, kCompiled).one_of({"default", "reduce-overhead", "max-autotune"}),
      quiet("dynamo_use_fullgraph, dynamo_use_dynamic", kFlag, kCompiled),
      quiet("dynamo_use_regional_compilation", kFlag, kCompiled), }, "dynamo_"},
      {"mpirun_config", {
      said("mpirun_hostfile", kText, "no launcher starts mpirun here; give it the file: mpirun --hostfile"),
      quiet("mpirun_ccl", kAny, "there is no oneCCL"), }, "mpirun_"},
  };
  return tables;
}
// clang-format on

const std::vector<DistributedType>& distributed_types() {
  constexpr const char* kDevice =
      "devices of this kind are not supported; use MULTI_GPU, MULTI_CPU or FSDP";
  static const std::vector<DistributedType> types{
      {"NO", "no_shard", nullptr},        {"MULTI_CPU", "no_shard", nullptr},
      {"MULTI_GPU", "no_shard", nullptr}, {"FSDP", nullptr, nullptr},
      {"DEEPSPEED", nullptr, nullptr},    {"MEGATRON_LM", nullptr, nullptr},
      {"XLA", nullptr, kDevice},          {"TPU", nullptr, kDevice},
      {"MULTI_XPU", nullptr, kDevice},    {"MULTI_NPU", nullptr, kDevice},
      {"MULTI_MLU", nullptr, kDevice},    {"MULTI_SDAA", nullptr, kDevice},
      {"MULTI_MUSA", nullptr, kDevice},   {"MULTI_HPU", nullptr, kDevice},
      {"MULTI_NEURON", nullptr, kDevice},
  };
  return types;
}

}  // namespace tessera::compat
