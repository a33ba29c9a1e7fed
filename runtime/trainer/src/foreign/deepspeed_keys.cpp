#include "foreign/deepspeed_keys.h"

namespace tessera::foreign {
namespace {

using enum KeyType;
using enum KeyUse;

constexpr const char* kRarely = "about how DeepSpeed works inside, not about what it computes";
constexpr const char* kLog = "the log has it always";
constexpr const char* kSetFalse = "set it to false";
constexpr const char* kScaling = "only fp16 scales its loss";
constexpr const char* kRemove = "remove it";

}  // namespace

const std::vector<KeyRule>& deepspeed_keys() {
  constexpr const char* kUseFiles =
      "set \"enabled\" to false and use --tensorboard DIR, --csv FILE or --log FILE";
  static const std::vector<KeyRule> table{
      {.name = "train_batch_size", .type = kInteger, .use = kUsed, .may_be_auto = true},
      {.name = "train_micro_batch_size_per_gpu",
       .type = kInteger,
       .use = kUsed,
       .may_be_auto = true},
      {.name = "gradient_accumulation_steps", .type = kInteger, .use = kUsed, .may_be_auto = true},
      {.name = "gradient_clipping", .type = kNumber, .use = kUsed, .may_be_auto = true},
      {.name = "zero_optimization", .type = kSection, .use = kUsed},
      {.name = "fp16", .type = kSection, .use = kUsed},
      {.name = "bf16", .type = kSection, .use = kUsed},
      {.name = "bfloat16", .type = kSection, .use = kUsed},
      {.name = "optimizer", .type = kSection, .use = kUsed},
      {.name = "scheduler", .type = kSection, .use = kUsed},
      {.name = "communication_data_type",
       .type = kText,
       .use = kUsed,
       .allowed = {"fp32", "bf16", "bfp16", "fp16"}},
      {.name = "activation_checkpointing", .type = kSection, .use = kUsed},
      {.name = "tensor_parallel", .type = kSection, .use = kUsed},
      {.name = "data_types", .type = kSection, .use = kUsed},
      {.name = "checkpoint", .type = kSection, .use = kUsed},
      {.name = "steps_per_print", .type = kAny, .use = kQuiet, .why = "every step is shown"},
      {.name = "wall_clock_breakdown", .type = kFlag, .use = kQuiet, .why = kLog},
      {.name = "memory_breakdown", .type = kFlag, .use = kQuiet, .why = kLog},
      {.name = "dump_state",
       .type = kFlag,
       .use = kQuiet,
       .why = "`tessera explain` prints the settings"},
      {.name = "prescale_gradients",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "dividing gradients before they are added",
       .instead = kSetFalse},
      {.name = "gradient_predivide_factor",
       .type = kNumber,
       .use = kRefused,
       .asks_for = "dividing gradients before they are added",
       .harmless = {"1.0"},
       .instead = "set it to 1.0"},
      {.name = "sparse_gradients",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "sparse gradients",
       .instead = kSetFalse},
      {.name = "disable_allgather", .type = kFlag, .use = kQuiet, .why = kRarely},
      {.name = "zero_allow_untested_optimizer",
       .type = kFlag,
       .use = kQuiet,
       .why = "every optimizer here works with every stage"},
      {.name = "zero_force_ds_cpu_optimizer",
       .type = kFlag,
       .use = kQuiet,
       .why = "there is one AdamW, with kernels per device"},
      {.name = "dataloader_drop_last",
       .type = kFlag,
       .use = kQuiet,
       .why = "every micro-batch is whole"},
      {.name = "fp16_master_weights_and_grads",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "master weights in fp16",
       .instead = kSetFalse},
      {.name = "seq_parallel_communication_data_type",
       .type = kText,
       .use = kQuiet,
       .why = "there is no sequence parallelism"},
      {.name = "sequence_parallel_size",
       .type = kInteger,
       .use = kRefused,
       .asks_for = "sequence parallelism",
       .harmless = {"1"},
       .instead = "set it to 1"},
      {.name = "aio", .type = kAny, .use = kQuiet, .why = "nothing is offloaded"},
      {.name = "nebula",
       .type = kSection,
       .use = kRefused,
       .asks_for = "Nebula's checkpoints",
       .instead = kRemove},
      {.name = "flops_profiler",
       .type = kSection,
       .use = kSaid,
       .why = "FLOPs and MFU are in the log"},
      {.name = "comms_logger",
       .type = kSection,
       .use = kSaid,
       .why = "every collective is counted in the log"},
      {.name = "tensorboard", .type = kSection, .use = kUsed},
      {.name = "csv_monitor", .type = kSection, .use = kUsed},
      {.name = "wandb",
       .type = kSection,
       .use = kRefused,
       .asks_for = "Weights & Biases",
       .instead = kUseFiles},
      {.name = "comet",
       .type = kSection,
       .use = kRefused,
       .asks_for = "Comet",
       .instead = kUseFiles},
      {.name = "trackio",
       .type = kSection,
       .use = kRefused,
       .asks_for = "Trackio",
       .instead = kUseFiles},
      {.name = "torch_autocast",
       .type = kSection,
       .use = kRefused,
       .asks_for = "PyTorch's autocast",
       .instead = "use \"bf16\": {\"enabled\": true}"},
      {.name = "amp",
       .type = kSection,
       .use = kRefused,
       .asks_for = "NVIDIA's Apex",
       .instead = "use \"bf16\": {\"enabled\": true}"},
      {.name = "elasticity",
       .type = kSection,
       .use = kRefused,
       .asks_for = "elastic training",
       .instead = kRemove},
      {.name = "autotuning",
       .type = kSection,
       .use = kRefused,
       .asks_for = "DeepSpeed's autotuning",
       .instead = "compare settings with `tessera plan`"},
      {.name = "hybrid_engine",
       .type = kSection,
       .use = kRefused,
       .asks_for = "the hybrid engine",
       .instead = kRemove},
      {.name = "compression_training",
       .type = kAny,
       .use = kRefused,
       .asks_for = "compression",
       .instead = kRemove},
      {.name = "data_efficiency",
       .type = kSection,
       .use = kRefused,
       .asks_for = "data efficiency",
       .instead = kRemove},
      {.name = "curriculum_learning",
       .type = kSection,
       .use = kRefused,
       .asks_for = "curriculum learning",
       .instead = kRemove},
      {.name = "progressive_layer_drop",
       .type = kSection,
       .use = kRefused,
       .asks_for = "progressive layer drop",
       .instead = kRemove},
      {.name = "eigenvalue",
       .type = kSection,
       .use = kRefused,
       .asks_for = "eigenvalues",
       .instead = kRemove},
      {.name = "quantize_training",
       .type = kSection,
       .use = kRefused,
       .asks_for = "quantised training",
       .instead = kRemove},
      {.name = "sparse_attention",
       .type = kAny,
       .use = kRefused,
       .asks_for = "sparse attention",
       .instead = kRemove},
      {.name = "pipeline",
       .type = kAny,
       .use = kRefused,
       .asks_for = "pipeline parallelism",
       .instead = kRemove},
      {.name = "moe",
       .type = kAny,
       .use = kRefused,
       .asks_for = "mixtures of experts",
       .instead = kRemove},
      {.name = "compile",
       .type = kSection,
       .use = kSaid,
       .why = "there is no Python code to compile"},
  };
  return table;
}

const std::vector<KeyRule>& monitor_keys() {
  static const std::vector<KeyRule> table{
      {.name = "enabled", .type = kFlag, .use = kUsed},
      {.name = "output_path", .type = kText, .use = kUsed},
      {.name = "job_name", .type = kText, .use = kUsed},
  };
  return table;
}

const std::vector<KeyRule>& half_precision_keys() {
  static const std::vector<KeyRule> table{
      {.name = "enabled", .type = kFlag, .use = kUsed, .may_be_auto = true},
      {.name = "auto_cast", .type = kFlag, .use = kQuiet, .why = kScaling, .may_be_auto = true},
      {.name = "loss_scale", .type = kNumber, .use = kQuiet, .why = kScaling, .may_be_auto = true},
      {.name = "initial_scale_power",
       .type = kNumber,
       .use = kQuiet,
       .why = kScaling,
       .may_be_auto = true},
      {.name = "loss_scale_window",
       .type = kNumber,
       .use = kQuiet,
       .why = kScaling,
       .may_be_auto = true},
      {.name = "hysteresis", .type = kNumber, .use = kQuiet, .why = kScaling, .may_be_auto = true},
      {.name = "consecutive_hysteresis",
       .type = kFlag,
       .use = kQuiet,
       .why = kScaling,
       .may_be_auto = true},
      {.name = "min_loss_scale",
       .type = kNumber,
       .use = kQuiet,
       .why = kScaling,
       .may_be_auto = true},
      {.name = "opt_level", .type = kText, .use = kQuiet, .why = kScaling, .may_be_auto = true},
      {.name = "immediate_grad_update", .type = kFlag, .use = kQuiet, .why = kRarely},
      {.name = "check_grad_overflow",
       .type = kFlag,
       .use = kQuiet,
       .why = "a loss that is not finite stops the run; see allow_non_finite"},
      {.name = "bf16_master_weights_and_grads",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "master weights in bf16",
       .instead = kSetFalse},
      {.name = "bf16_optimizer_states",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "optimizer states in bf16",
       .instead = kSetFalse},
      {.name = "fp16_master_weights_and_grads",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "master weights in fp16",
       .instead = kSetFalse},
  };
  return table;
}

const std::vector<KeyRule>& optimizer_keys() {
  static const std::vector<KeyRule> table{
      {.name = "type", .type = kText, .use = kUsed},
      {.name = "params", .type = kSection, .use = kUsed},
      {.name = "legacy_fusion", .type = kFlag, .use = kQuiet, .why = kRarely},
  };
  return table;
}

const std::vector<KeyRule>& optimizer_params_keys() {
  static const std::vector<KeyRule> table{
      {.name = "lr", .type = kNumber, .use = kUsed, .may_be_auto = true},
      {.name = "betas", .type = kAny, .use = kUsed, .may_be_auto = true},
      {.name = "eps", .type = kNumber, .use = kUsed, .may_be_auto = true},
      {.name = "weight_decay", .type = kNumber, .use = kUsed, .may_be_auto = true},
      {.name = "adam_w_mode", .type = kFlag, .use = kUsed},
      {.name = "torch_adam",
       .type = kFlag,
       .use = kQuiet,
       .why = "there is one AdamW, with kernels per device"},
      {.name = "fused",
       .type = kFlag,
       .use = kQuiet,
       .why = "there is one AdamW, with kernels per device"},
      {.name = "bias_correction",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "AdamW without bias correction",
       .harmless = {"true"},
       .instead = "set it to true"},
      {.name = "amsgrad",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "AMSGrad",
       .instead = kSetFalse},
  };
  return table;
}

const std::vector<KeyRule>& scheduler_keys() {
  static const std::vector<KeyRule> table{
      {.name = "type", .type = kText, .use = kUsed},
      {.name = "params", .type = kSection, .use = kUsed},
  };
  return table;
}

const std::vector<KeyRule>& scheduler_params_keys() {
  static const std::vector<KeyRule> table{
      {.name = "warmup_min_lr", .type = kNumber, .use = kUsed, .may_be_auto = true},
      {.name = "warmup_max_lr", .type = kNumber, .use = kUsed, .may_be_auto = true},
      {.name = "warmup_num_steps", .type = kInteger, .use = kUsed, .may_be_auto = true},
      {.name = "warmup_type",
       .type = kText,
       .use = kUsed,
       .allowed = {"log", "linear"},
       .may_be_auto = true},
      {.name = "total_num_steps", .type = kInteger, .use = kUsed, .may_be_auto = true},
      {.name = "warmup_min_ratio", .type = kNumber, .use = kUsed, .may_be_auto = true},
      {.name = "cos_min_ratio", .type = kNumber, .use = kUsed, .may_be_auto = true},
      {.name = "last_batch_iteration",
       .type = kInteger,
       .use = kRefused,
       .asks_for = "starting in the middle of a schedule",
       .harmless = {"-1"},
       .instead = kRemove},
  };
  return table;
}

const std::vector<KeyRule>& activation_checkpointing_keys() {
  constexpr const char* kSwitch =
      "does not switch recomputation on, there or here; --recompute full does";
  static const std::vector<KeyRule> table{
      {.name = "partition_activations",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "activations cut over tensor-parallel ranks",
       .instead = kSetFalse},
      {.name = "cpu_checkpointing",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "offloading activations",
       .instead = "set it to false and use --recompute full"},
      {.name = "contiguous_memory_optimization", .type = kFlag, .use = kQuiet, .why = kSwitch},
      {.name = "number_checkpoints", .type = kAny, .use = kQuiet, .why = kSwitch},
      {.name = "synchronize_checkpoint_boundary", .type = kFlag, .use = kQuiet, .why = kSwitch},
      {.name = "profile", .type = kFlag, .use = kQuiet, .why = kSwitch},
  };
  return table;
}

const std::vector<KeyRule>& tensor_parallel_keys() {
  static const std::vector<KeyRule> table{
      {.name = "autotp_size",
       .type = kInteger,
       .use = kRefused,
       .asks_for = "tensor parallelism",
       .harmless = {"0", "1"},
       .instead = "set it to 1"},
  };
  return table;
}

const std::vector<KeyRule>& data_types_keys() {
  static const std::vector<KeyRule> table{
      {.name = "grad_accum_dtype",
       .type = kText,
       .use = kRefused,
       .asks_for = "gradients that are added up in less than fp32",
       .harmless = {"fp32"},
       .instead = "set it to \"fp32\""},
  };
  return table;
}

const std::vector<KeyRule>& checkpoint_keys() {
  constexpr const char* kSaving = "about saving, not about training";
  static const std::vector<KeyRule> table{
      {.name = "tag_validation", .type = kText, .use = kQuiet, .why = kSaving},
      {.name = "load_universal",
       .type = kFlag,
       .use = kRefused,
       .asks_for = "DeepSpeed's universal checkpoints",
       .instead = kSetFalse},
      {.name = "use_node_local_storage", .type = kFlag, .use = kQuiet, .why = kSaving},
      {.name = "parallel_write", .type = kAny, .use = kQuiet, .why = kSaving},
      {.name = "writer", .type = kAny, .use = kQuiet, .why = kSaving},
  };
  return table;
}

}  // namespace tessera::foreign
