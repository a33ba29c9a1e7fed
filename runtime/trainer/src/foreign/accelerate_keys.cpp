#include "foreign/accelerate_keys.h"

namespace tessera::foreign {
namespace {

using enum KeyType;
using enum KeyUse;

constexpr const char* kTpu = "only for TPUs";
constexpr const char* kOneMeeting = "processes have one way to find each other";
constexpr const char* kNoOffload =
    "use more ranks, recomputation (fsdp_activation_checkpointing: true) or a smaller micro-batch";
constexpr const char* kShardInstead =
    "set it to 1 and shard over those ranks: parallelism_config_dp_shard_size";
constexpr const char* kOnlyAxis = "belongs to an axis that is not there";
constexpr const char* kNoNvme = "nothing is kept outside memory";

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
      {"compute_environment",
       kText,
       kRefused,
       "jobs in SageMaker",
       {"LOCAL_MACHINE"},
       "run on the machine itself, with LOCAL_MACHINE"},
      {"distributed_type", kText, kUsed},
      {"mixed_precision", kText, kUsed, "", {"no", "bf16", "fp16", "fp8"}},
      {"fp16",
       kFlag,
       kRefused,
       "fp16",
       {},
       "use mixed_precision: bf16, which needs no loss scaling"},
      {"num_processes", kInteger, kUsed},
      {"num_machines", kInteger, kUsed},
      {"machine_rank", kInteger, kUsed},
      {"main_process_ip", kText, kUsed},
      {"main_process_port", kInteger, kUsed},
      {"rdzv_backend", kText, kSaid, kOneMeeting, {"static"}},
      {"same_network", kFlag, kQuiet, kOneMeeting},
      {"gpu_ids", kText, kUsed},
      {"enable_cpu_affinity",
       kFlag,
       kRefused,
       "binding processes to NUMA nodes",
       {},
       "set it to false and start the program under numactl"},
      {"use_cpu", kFlag, kUsed},
      {"debug", kFlag, kUsed},
      {"main_training_function", kText, kQuiet, "names a Python function of notebooks"},
      {"downcast_bf16", kAny, kQuiet, kTpu},
      {"tpu_name", kAny, kQuiet, kTpu},
      {"tpu_zone", kAny, kQuiet, kTpu},
      {"tpu_use_cluster", kFlag, kQuiet, kTpu},
      {"tpu_use_sudo", kFlag, kQuiet, kTpu},
      {"tpu_vm", kAny, kQuiet, kTpu},
      {"tpu_env", kAny, kQuiet, kTpu},
      {"command_file", kAny, kQuiet, kTpu},
      {"commands", kAny, kQuiet, kTpu},
      {"dynamo_backend", kText, kSaid, "there is no Python code to compile", {"NO"}},
      {"dynamo_config", kSection, kUsed},
      {"fsdp_config", kSection, kUsed},
      {"parallelism_config", kSection, kUsed},
      {"deepspeed_config", kSection, kUsed},
      {"mpirun_config", kSection, kUsed},
      {"megatron_lm_config",
       kAny,
       kRefused,
       "Megatron-LM",
       {},
       "remove it; distributed_type: FSDP shards the same state over all ranks"},
      {"fp8_config", kAny, kRefused, "fp8", {}, "remove it and use mixed_precision: bf16"},
      {"ipex_config", kAny, kQuiet, "there is no PyTorch to extend"},
  };
  return table;
}

const std::vector<KeyRule>& fsdp_keys() {
  static const std::vector<KeyRule> table{
      {"fsdp_version", kInteger, kUsed, "", {"1", "2"}},
      {"fsdp_sharding_strategy",
       kText,
       kUsed,
       "",
       {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "1", "2",
        "3", "4", "5"}},
      {"fsdp_reshard_after_forward", kText, kUsed},  // a boolean or, in version 1, a strategy
      {"fsdp_auto_wrap_policy",
       kText,
       kUsed,
       "",
       {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP", "1", "2", "3"}},
      {"fsdp_transformer_layer_cls_to_wrap", kText, kUsed},
      {"fsdp_min_num_params", kInteger, kUsed},
      {"fsdp_backward_prefetch",
       kText,
       kUsed,
       "",
       {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "1", "2", "3"}},
      {"fsdp_backward_prefetch_policy",
       kText,
       kUsed,
       "",
       {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "1", "2", "3"}},
      {"fsdp_forward_prefetch", kFlag, kUsed},
      {"fsdp_offload_params",
       kFlag,
       kRefused,
       "keeping the state in the host's memory",
       {},
       kNoOffload},
      {"fsdp_state_dict_type",
       kText,
       kUsed,
       "",
       {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT", "1", "2", "3"}},
      {"fsdp_use_orig_params", kFlag, kQuiet, "parameters keep their names and shapes always"},
      {"fsdp_cpu_ram_efficient_loading", kFlag, kQuiet, "no weights are loaded from a checkpoint"},
      {"fsdp_sync_module_states", kFlag, kQuiet,
       "all ranks compute the same first parameters from the seed"},
      {"fsdp_activation_checkpointing", kFlag, kUsed},
      {"fsdp_ignored_modules",
       kText,
       kRefused,
       "leaving modules out of the sharding",
       {},
       "remove it; parameters of any module can be sharded"},
      {"fsdp_limit_all_gathers", kFlag, kQuiet,
       "gathers are bounded always: a unit is gathered when a slot is free"},
  };
  return table;
}

const std::vector<KeyRule>& parallelism_keys() {
  static const std::vector<KeyRule> table{
      {"parallelism_config_dp_replicate_size", kInteger, kUsed},
      {"parallelism_config_dp_shard_size", kInteger, kUsed},
      {"parallelism_config_tp_size",
       kInteger,
       kRefused,
       "tensor parallelism",
       {"1"},
       kShardInstead},
      {"parallelism_config_cp_size",
       kInteger,
       kRefused,
       "context parallelism",
       {"1"},
       kShardInstead},
      {"parallelism_config_sp_size",
       kInteger,
       kRefused,
       "sequence parallelism",
       {"1"},
       kShardInstead},
      {"parallelism_config_cp_backend", kText, kQuiet, kOnlyAxis, {"torch"}},
      {"parallelism_config_cp_comm_strategy", kText, kQuiet, kOnlyAxis, {"allgather", "alltoall"}},
      {"parallelism_config_sp_backend", kText, kQuiet, kOnlyAxis, {"deepspeed"}},
      {"parallelism_config_sp_seq_length", kInteger, kQuiet, kOnlyAxis},
      {"parallelism_config_sp_seq_length_is_variable", kFlag, kQuiet, kOnlyAxis},
      {"parallelism_config_sp_attn_implementation", kText, kQuiet, kOnlyAxis},
  };
  return table;
}

const std::vector<KeyRule>& accelerate_deepspeed_keys() {
  constexpr const char* kLauncher = "ranks are threads of one process, which `tessera` starts";
  static const std::vector<KeyRule> table{
      {"zero_stage", kInteger, kUsed, "", {"0", "1", "2", "3"}},
      {"gradient_accumulation_steps", kInteger, kUsed, "", {}, "", true},
      {"gradient_clipping", kNumber, kUsed, "", {}, "", true},
      {"deepspeed_config_file", kText, kUsed},
      {"offload_optimizer_device",
       kText,
       kRefused,
       "offloading optimizer state",
       {"none"},
       "set it to none and use more ranks"},
      {"offload_param_device",
       kText,
       kRefused,
       "offloading parameters",
       {"none"},
       "set it to none and use more ranks"},
      {"offload_optimizer_nvme_path", kText, kQuiet, kNoNvme},
      {"offload_param_nvme_path", kText, kQuiet, kNoNvme},
      {"zero3_init_flag", kFlag, kQuiet, "there is no second way to build a model"},
      {"zero3_save_16bit_model", kFlag, kQuiet, "says how DeepSpeed saves, not how it trains"},
      {"deepspeed_moe_layer_cls_names", kText, kRefused, "mixtures of experts", {}, "remove it"},
      {"deepspeed_hostfile", kText, kRefused, "DeepSpeed's launcher", {}, "remove it"},
      {"deepspeed_inclusion_filter", kText, kRefused, "DeepSpeed's launcher", {}, "remove it"},
      {"deepspeed_exclusion_filter", kText, kRefused, "DeepSpeed's launcher", {}, "remove it"},
      {"deepspeed_multinode_launcher",
       kText,
       kQuiet,
       kLauncher,
       {"pdsh", "standard", "openmpi", "mvapich", "mpich", "impi", "slurm", "nossh"}},
  };
  return table;
}

const std::vector<KeyRule>& dynamo_keys() {
  constexpr const char* kCompiled = "there is no Python code to compile";
  static const std::vector<KeyRule> table{
      {"dynamo_backend", kText, kSaid, kCompiled, {"NO"}},
      {"dynamo_mode", kText, kQuiet, kCompiled},
      {"dynamo_use_fullgraph", kFlag, kQuiet, kCompiled},
      {"dynamo_use_dynamic", kFlag, kQuiet, kCompiled},
      {"dynamo_use_regional_compilation", kFlag, kQuiet, kCompiled},
  };
  return table;
}

const std::vector<KeyRule>& mpirun_keys() {
  static const std::vector<KeyRule> table{
      {"mpirun_hostfile", kText, kRefused, "starting ranks with mpirun", {}, "remove it"},
      {"mpirun_ccl", kAny, kQuiet, "there is no oneCCL"},
  };
  return table;
}

}  // namespace tessera::foreign
