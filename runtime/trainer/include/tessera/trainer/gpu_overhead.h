#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/trainer/training_plan.h"

namespace tessera {

/// Something that a rank takes of its GPU beside what the plan counts.
struct OverheadItem {
  std::string name;
  std::int64_t bytes = 0;
  std::string source;  ///< of the number, in a clause
};

/// All that a rank takes of its GPU beside TrainingPlan::memory; empty if the run is not on GPUs.
/// The part of the memory pool is simulated, to the byte; those of the CUDA graph and of NCCL
/// follow from the schedule and from constants that NVIDIA's and PyTorch's sources give; context
/// and kernels are allowances, as long as no GPU has been measured. Ranks that share a GPU share
/// its context and kernels, which is not deducted.
std::vector<OverheadItem> gpu_overhead(const TrainingPlan& plan, int pipeline_rank);
/// The stage is the one that needs most memory.
std::vector<OverheadItem> gpu_overhead(const TrainingPlan& plan);

std::int64_t total_bytes(const std::vector<OverheadItem>& items);

/// The memory that a rank must have of its device: the plan's peak, and on a GPU the items beside
/// it. Every comparison of a plan with a budget or with a whole device's memory takes this number.
std::int64_t device_bytes(const TrainingPlan& plan, int pipeline_rank);
/// The stage is the one that needs most memory.
std::int64_t device_bytes(const TrainingPlan& plan);

/// "memory pool 12.0 MiB, CUDA context 640.0 MiB, ...".
std::string describe(const std::vector<OverheadItem>& items);

}  // namespace tessera
