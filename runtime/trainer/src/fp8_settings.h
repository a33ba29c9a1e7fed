#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/sharding/layout.h"
#include "tessera/sharding/step_plan.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

/// Throws Error{kConfig} if settings of fp8 are given with another precision.
void check_fp8(const TrainerOptions& options);

/// Notes of a plan: which blocks are in fp8, and where it gains nothing. `rows` of a micro-batch's
/// activations; 0: not known. Throws Error{kConfig} if nothing of the model is in fp8.
std::vector<std::string> fp8_notes(const TrainerOptions& options, const ModelLayout& layout,
                                   std::int64_t rows);

/// Notes of a run on GPUs: which products are of decoded operands there, and why.
std::vector<std::string> fp8_gpu_notes(const TrainerOptions& options, const ModelLayout& layout,
                                       std::int64_t rows);

/// CudaKernelOptions::fp8_gemms on this machine's GPUs; true where there is none, as in a plan for
/// GPUs elsewhere.
bool gpus_multiply_fp8();

/// How matrices in fp8 travel in a step, where they are in shards; "": nothing is to be said.
std::string gather_note(const TrainerOptions& options, const StepPlan& step);

}  // namespace tessera
