#pragma once

#include <vector>

#include "foreign/key_table.h"

namespace tessera::foreign {

// The keys of Accelerate's file and of its sections, and what we do with each. They follow
// Accelerate 1.15 and what its older versions wrote.
const std::vector<KeyRule>& accelerate_keys();
const std::vector<KeyRule>& fsdp_keys();
const std::vector<KeyRule>& parallelism_keys();
const std::vector<KeyRule>& accelerate_deepspeed_keys();
const std::vector<KeyRule>& dynamo_keys();
const std::vector<KeyRule>& mpirun_keys();

/// What `distributed_type` may be.
struct DistributedType {
  const char* name;
  const char* strategy;  ///< ours; null: its section tells, or it is refused
  const char* refusal;   ///< null, or why we cannot
};
const std::vector<DistributedType>& distributed_types();

}  // namespace tessera::foreign
