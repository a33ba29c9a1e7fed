#include "foreign/accelerate_keys.h"

namespace tessera::foreign {
namespace {

using enum KeyType;
using enum KeyUse;

constexpr const char* kTpu = "only for TPUs";
constexpr const char* kOneMeeting = "processes have one way to find each other";
constexpr const char* kOffloadRemedy =
    "use more ranks, recomputation (fsdp_activation_checkpointing: true) or a smaller micro-batch";
constexpr const char* kShardInstead =
    "set it to 1 and shard over those ranks: parallelism_config_dp_shard_size";
constexpr const char* kOnlyAxis = "belongs to an axis that is not there";
constexpr const char* kNoNvme = "nothing is kept outside memory";
constexpr const char* kCompiled = "there is no Python code to compile";

const std::vector<const char*>& dynamo_backends() {
  static const std::vector<const char*> names{"NO",
                                              "EAGER",
                                              "AOT_EAGER",
                                              "INDUCTOR",
                                              "AOT_TS_NVFUSER",
                                              "NVPRIMS_NVFUSER",
                                              "CUDAGRAPHS",
                                              "OFI",
                                              "FX2TRT",
                                              "ONNXRT",
                                              "TENSORRT",
                                              "AOT_TORCHXLA_TRACE_ONCE",
                                              "TORCHXLA_TRACE_ONCE",
                                              "IPEX",
                                              "TVM",
                                              "HPU_BACKEND",
                                              "NEURON"};
  return names;
}

}  // namespace

const std::vector<DistributedType>& distributed_types() {
  constexpr const char* kDevice =
      "devices of this kind are not supported; use MULTI_GPU, MULTI_CPU or FSDP";
  static const std::vector<DistributedType> types{
      {"NO", "no_shard", nullptr},
      {"MULTI_CPU", "no_shard", nullptr},
      {"MULTI_GPU", "no_shard", nullptr},
      {"FSDP", nullptr, nullptr},
      {"DEEPSPEED", nullptr, nullptr},
      {"MEGATRON_LM", nullptr,
       "tensor and pipeline parallelism are not there; use FSDP, which shards the same state over "
       "all ranks"},
      {"XLA", nullptr, kDevice},
      {"TPU", nullptr, kDevice},
      {"MULTI_XPU", nullptr, kDevice},
      {"MULTI_NPU", nullptr, kDevice},
      {"MULTI_MLU", nullptr, kDevice},
      {"MULTI_SDAA", nullptr, kDevice},
      {"MULTI_MUSA", nullptr, kDevice},
      {"MULTI_HPU", nullptr, kDevice},
      {"MULTI_NEURON", nullptr, kDevice},
  };
  return types;
}

const std::vector<KeyRule>& accelerate_keys() {
  static const std::vector<KeyRule> table{
      {.name = "compute_environment",
       .type = kText,
       .use = kRefused,
       .asks_for = "jobs in SageMaker",
       .harmless = {"LOCAL_MACHINE"},
       .refused = {"AMAZON_SAGEMAKER"},
       .instead = "run on the machine itself, with LOCAL_MACHINE"},
      // YAML reads a bare NO as a boolean.
      {.name = "distributed_type", .type = kAny, .use = kUsed},
      {.name = "mixed_precision",
       .type = kText,
       .use = kUsed,
       .allowed = {"no", "bf16", "fp16", "fp8"}},
      {.name = "fp16",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "fp16",
       .lifted_by = "precision",
       .instead = "use mixed_precision: bf16, which needs no loss scaling"},
      {.name = "num_processes", .type = kInteger, .use = kUsed},
      {.name = "num_machines", .type = kInteger, .use = kUsed},
      {.name = "machine_rank", .type = kInteger, .use = kUsed},
      {.name = "main_process_ip", .type = kText, .use = kUsed},
      {.name = "main_process_port", .type = kInteger, .use = kUsed},
      {.name = "rdzv_backend",
       .type = kText,
       .use = kQuiet,
       .why = kOneMeeting,
       .harmless = {"static"}},
      {.name = "same_network", .type = kFlag, .use = kQuiet, .why = kOneMeeting},
      {.name = "gpu_ids", .type = kText, .use = kUsed},
      {.name = "enable_cpu_affinity", .type = kFlag, .use = kUsed},
      {.name = "use_cpu", .type = kFlag, .use = kUsed},
      {.name = "debug", .type = kFlag, .use = kUsed},
      {.name = "main_training_function",
       .type = kText,
       .use = kQuiet,
       .why = "names a Python function of notebooks"},
      {.name = "downcast_bf16", .type = kAny, .use = kQuiet, .why = kTpu},
      {.name = "tpu_name", .type = kAny, .use = kQuiet, .why = kTpu},
      {.name = "tpu_zone", .type = kAny, .use = kQuiet, .why = kTpu},
      {.name = "tpu_use_cluster", .type = kFlag, .use = kQuiet, .why = kTpu},
      {.name = "tpu_use_sudo", .type = kFlag, .use = kQuiet, .why = kTpu},
      {.name = "tpu_vm", .type = kAny, .use = kQuiet, .why = kTpu},
      {.name = "tpu_env", .type = kAny, .use = kQuiet, .why = kTpu},
      {.name = "command_file", .type = kAny, .use = kQuiet, .why = kTpu},
      {.name = "commands", .type = kAny, .use = kQuiet, .why = kTpu},
      {.name = "dynamo_backend",
       .type = kText,
       .use = kSaid,
       .why = kCompiled,
       .allowed = dynamo_backends(),
       .harmless = {"NO"}},
      {.name = "dynamo_config", .type = kSection, .use = kUsed},
      {.name = "fsdp_config", .type = kSection, .use = kUsed},
      {.name = "parallelism_config", .type = kSection, .use = kUsed},
      {.name = "deepspeed_config", .type = kSection, .use = kUsed},
      {.name = "mpirun_config", .type = kSection, .use = kUsed},
      {.name = "megatron_lm_config",
       .type = kAny,
       .use = kSaid,
       .why = "is read only with distributed_type: MEGATRON_LM, as in Accelerate"},
      {.name = "fp8_config",
       .type = kAny,
       .use = kSaid,
       .why = "is read only with mixed_precision: fp8, as in Accelerate"},
      {.name = "ipex_config", .type = kAny, .use = kQuiet, .why = "there is no PyTorch to extend"},
  };
  return table;
}

const std::vector<KeyRule>& fsdp_keys() {
  static const std::vector<KeyRule> table{
      {.name = "fsdp_version", .type = kInteger, .use = kUsed, .allowed = {"1", "2"}},
      {.name = "fsdp_sharding_strategy",
       .type = kText,
       .use = kUsed,
       .allowed = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2",
                   "1", "2", "3", "4", "5"}},
      // A boolean or, in version 1, a strategy.
      {.name = "fsdp_reshard_after_forward", .type = kAny, .use = kUsed},
      {.name = "fsdp_auto_wrap_policy",
       .type = kText,
       .use = kUsed,
       .allowed = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP", "1", "2", "3"}},
      {.name = "fsdp_transformer_layer_cls_to_wrap", .type = kText, .use = kUsed},
      {.name = "fsdp_min_num_params", .type = kInteger, .use = kUsed},
      {.name = "fsdp_backward_prefetch",
       .type = kText,
       .use = kUsed,
       .allowed = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "1", "2", "3"}},
      {.name = "fsdp_backward_prefetch_policy",
       .type = kText,
       .use = kUsed,
       .allowed = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "1", "2", "3"}},
      {.name = "fsdp_forward_prefetch", .type = kFlag, .use = kUsed},
      {.name = "fsdp_offload_params",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "keeping the state in the host's memory",
       .instead = kOffloadRemedy},
      {.name = "fsdp_state_dict_type",
       .type = kText,
       .use = kUsed,
       .allowed = {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT", "1", "2", "3"}},
      {.name = "fsdp_use_orig_params",
       .type = kFlag,
       .use = kQuiet,
       .why = "parameters keep their names and shapes always"},
      {.name = "fsdp_cpu_ram_efficient_loading",
       .type = kFlag,
       .use = kQuiet,
       .why = "no weights are loaded from a checkpoint"},
      {.name = "fsdp_sync_module_states",
       .type = kFlag,
       .use = kQuiet,
       .why = "all ranks compute the same first parameters from the seed"},
      {.name = "fsdp_activation_checkpointing", .type = kFlag, .use = kUsed},
      {.name = "fsdp_activation_checkpointing_offload",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "keeping activations in the host's memory",
       .instead = "set it to false; fsdp_activation_checkpointing: true recomputes them"},
      {.name = "fsdp_ignored_modules",
       .type = kText,
       .use = kRefused,
       .asks_for = "leaving modules out of the sharding",
       .instead = "remove it; parameters of any module can be sharded"},
      {.name = "fsdp_limit_all_gathers",
       .type = kFlag,
       .use = kQuiet,
       .why = "gathers are bounded always: a unit is gathered when a slot is free"},
  };
  return table;
}

const std::vector<KeyRule>& parallelism_keys() {
  static const std::vector<KeyRule> table{
      {.name = "parallelism_config_dp_replicate_size", .type = kInteger, .use = kUsed},
      {.name = "parallelism_config_dp_shard_size", .type = kInteger, .use = kUsed},
      {.name = "parallelism_config_tp_size",
       .type = kInteger,
       .use = kRefused,
       .asks_for = "tensor parallelism",
       .harmless = {"1"},
       .instead = kShardInstead},
      {.name = "parallelism_config_cp_size",
       .type = kInteger,
       .use = kRefused,
       .asks_for = "context parallelism",
       .harmless = {"1"},
       .instead = kShardInstead},
      {.name = "parallelism_config_sp_size",
       .type = kInteger,
       .use = kRefused,
       .asks_for = "sequence parallelism",
       .harmless = {"1"},
       .instead = kShardInstead},
      {.name = "parallelism_config_pp_size",
       .type = kInteger,
       .use = kRefused,
       .asks_for = "pipeline parallelism",
       .harmless = {"1"},
       .instead = kShardInstead},
      {.name = "parallelism_config_cp_backend",
       .type = kText,
       .use = kQuiet,
       .why = kOnlyAxis,
       .allowed = {"torch"}},
      {.name = "parallelism_config_cp_comm_strategy",
       .type = kText,
       .use = kQuiet,
       .why = kOnlyAxis,
       .allowed = {"allgather", "alltoall"}},
      {.name = "parallelism_config_sp_backend",
       .type = kText,
       .use = kQuiet,
       .why = kOnlyAxis,
       .allowed = {"deepspeed"}},
      {.name = "parallelism_config_sp_seq_length",
       .type = kInteger,
       .use = kQuiet,
       .why = kOnlyAxis},
      {.name = "parallelism_config_sp_seq_length_is_variable",
       .type = kFlag,
       .use = kQuiet,
       .why = kOnlyAxis},
      {.name = "parallelism_config_sp_attn_implementation",
       .type = kText,
       .use = kQuiet,
       .why = kOnlyAxis},
  };
  return table;
}

const std::vector<KeyRule>& accelerate_deepspeed_keys() {
  constexpr const char* kLauncher = "'tessera launch', mpirun or srun starts the processes";
  static const std::vector<KeyRule> table{
      {.name = "zero_stage", .type = kInteger, .use = kUsed, .allowed = {"0", "1", "2", "3"}},
      {.name = "gradient_accumulation_steps", .type = kInteger, .use = kUsed, .may_be_auto = true},
      {.name = "gradient_clipping", .type = kNumber, .use = kUsed, .may_be_auto = true},
      {.name = "deepspeed_config_file", .type = kText, .use = kUsed},
      {.name = "offload_optimizer_device",
       .type = kText,
       .use = kRefused,
       .asks_for = "offloading optimizer state",
       .harmless = {"none"},
       .refused = {"cpu", "nvme"},
       .instead = "set it to none and use more ranks"},
      {.name = "offload_param_device",
       .type = kText,
       .use = kRefused,
       .asks_for = "offloading parameters",
       .harmless = {"none"},
       .refused = {"cpu", "nvme"},
       .instead = "set it to none and use more ranks"},
      {.name = "offload_optimizer_nvme_path", .type = kText, .use = kQuiet, .why = kNoNvme},
      {.name = "offload_param_nvme_path", .type = kText, .use = kQuiet, .why = kNoNvme},
      {.name = "zero3_init_flag",
       .type = kFlag,
       .use = kQuiet,
       .why = "there is no second way to build a model"},
      {.name = "zero3_save_16bit_model",
       .type = kFlag,
       .use = kQuiet,
       .why = "says how DeepSpeed saves, not how it trains"},
      {.name = "deepspeed_moe_layer_cls_names",
       .type = kText,
       .use = kRefused,
       .asks_for = "mixtures of experts",
       .instead = "remove it"},
      {.name = "deepspeed_hostfile", .type = kText, .use = kSaid, .why = kLauncher},
      {.name = "deepspeed_inclusion_filter", .type = kText, .use = kSaid, .why = kLauncher},
      {.name = "deepspeed_exclusion_filter", .type = kText, .use = kSaid, .why = kLauncher},
      {.name = "deepspeed_multinode_launcher",
       .type = kText,
       .use = kQuiet,
       .why = kLauncher,
       .allowed = {"pdsh", "standard", "openmpi", "mvapich", "mpich", "impi", "slurm", "nossh"}},
  };
  return table;
}

const std::vector<KeyRule>& dynamo_keys() {
  static const std::vector<KeyRule> table{
      {.name = "dynamo_backend",
       .type = kText,
       .use = kSaid,
       .why = kCompiled,
       .allowed = dynamo_backends(),
       .harmless = {"NO"}},
      {.name = "dynamo_mode",
       .type = kText,
       .use = kQuiet,
       .why = kCompiled,
       .allowed = {"default", "reduce-overhead", "max-autotune"}},
      {.name = "dynamo_use_fullgraph", .type = kFlag, .use = kQuiet, .why = kCompiled},
      {.name = "dynamo_use_dynamic", .type = kFlag, .use = kQuiet, .why = kCompiled},
      {.name = "dynamo_use_regional_compilation", .type = kFlag, .use = kQuiet, .why = kCompiled},
  };
  return table;
}

const std::vector<KeyRule>& mpirun_keys() {
  static const std::vector<KeyRule> table{
      {.name = "mpirun_hostfile",
       .type = kText,
       .use = kSaid,
       .why = "no launcher starts mpirun here; give it the file: mpirun --hostfile"},
      {.name = "mpirun_ccl", .type = kAny, .use = kQuiet, .why = "there is no oneCCL"},
  };
  return table;
}

}  // namespace tessera::foreign
