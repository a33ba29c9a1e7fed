#pragma once

#include <cstdint>
#include <memory>

#include "plan/planned_run.h"
#include "tessera/compat/config.h"
#include "tessera/lab/hardware_profile.h"
#include "tessera/lab/simulate_step.h"

namespace tessera::cli {

/// A run on a machine that need not be here, and its results.
struct SimulatedRun {
  std::shared_ptr<const PlannedRun> run{};
  SimulatedStep step{};
  std::int64_t tokens = 0;  ///< of a step, all ranks
  double peak_flops = 0.0;  ///< of a device, per second; 0: the profile has none for the precision
  double mfu = 0.0;         ///< attention's causal half is counted; 0: there is no peak
  double full_mfu = 0.0;    ///< all of attention is, as PaLM and torchtitan do
  std::int64_t memory = 0;  ///< of a device, with what it takes beside the plan

  const TrainingPlan& plan() const { return run->plan; }
  double tokens_per_second() const { return static_cast<double>(tokens) / step.seconds; }
};

/// Simulates the run that a config describes on a profile's devices, `ranks_per_node` of them to a
/// node. Ranks of a CPU's node are threads of one process, those of GPUs processes. Throws
/// Error{kConfig} if the run cannot be planned or the profile has no rates for it.
SimulatedRun simulate_run(Config config, const HardwareProfile& profile, int ranks_per_node);

/// Writes the run's step as a trace to a file. Throws Error{kIo}.
void write_trace(const std::string& path, const SimulatedRun& run);

}  // namespace tessera::cli
