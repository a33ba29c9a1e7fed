#pragma once

#include <vector>

#include "foreign/key_table.h"

namespace tessera::foreign {

// The keys of DeepSpeed's JSON and of its sections, and what we do with each.
const std::vector<KeyRule>& deepspeed_keys();
const std::vector<KeyRule>& zero_keys();
const std::vector<KeyRule>& zero_offload_keys();
const std::vector<KeyRule>& half_precision_keys();  ///< fp16 and bf16
const std::vector<KeyRule>& optimizer_keys();
const std::vector<KeyRule>& optimizer_params_keys();
const std::vector<KeyRule>& scheduler_keys();
const std::vector<KeyRule>& scheduler_params_keys();
const std::vector<KeyRule>& activation_checkpointing_keys();
const std::vector<KeyRule>& tensor_parallel_keys();
const std::vector<KeyRule>& data_types_keys();
const std::vector<KeyRule>& checkpoint_keys();
const std::vector<KeyRule>& monitor_keys();  ///< tensorboard and csv_monitor

}  // namespace tessera::foreign
