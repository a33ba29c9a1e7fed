#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/planned_run.h"
#include "settings/sweep.h"
#include "tessera/compat/config.h"
#include "tessera/core/named_text.h"
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
  /// The energy of a step on all GPUs; 0: the profile does not know it.
  double joules() const {
    return step.joules * plan().options.ranks / static_cast<double>(step.stages.size());
  }
  /// The tokens of a rank's step for which its GPU computes as long as the host updates: with
  /// fewer, updates cannot be hidden. 0: none are on the host.
  double tokens_to_hide_updates() const {
    const auto ranks =
        static_cast<double>(plan().options.ranks) / static_cast<double>(step.stages.size());
    return static_cast<double>(tokens) / ranks * step.host_updates / step.of(Lane::kCompute).busy;
  }
  double tokens_per_second() const { return static_cast<double>(tokens) / step.seconds; }
};

/// Simulates the run that a config describes on a profile's devices, `ranks_per_node` of them to a
/// node. Ranks of a CPU's node are threads of one process, those of GPUs processes. Throws
/// Error{kConfig} if the run cannot be planned or the profile has no rates for it.
SimulatedRun simulate_run(Config config, const HardwareProfile& profile, int ranks_per_node);

/// Writes the run's step as a trace to a file. Throws Error{kIo}.
void write_trace(const std::string& path, const SimulatedRun& run);

/// A combination of swept settings.
struct SimulatedCell : SimulatedRun {
  std::vector<std::string> values{};
  bool is_best = false;  ///< on the Pareto front of memory and time for a token
  bool is_open = false;  ///< see cannot_be_told_apart()
};

struct SimulatedSweep {
  std::vector<SimulatedCell> cells{};
  std::vector<LeftOut> left_out{};  ///< combinations that cannot be
};

/// Simulates every combination, the last setting's values first; of no settings, the run itself.
SimulatedSweep simulate_sweep(const Config& config, const HardwareProfile& profile,
                              const std::vector<Swept>& sweep);

/// The settings that all runs of a sweep share: first those that decide most, precision at the
/// head, then all others that are not at their defaults.
std::vector<NamedText> fixed_settings(const Config& config, const std::vector<Swept>& sweep,
                                      const std::vector<SimulatedCell>& cells);

/// A table for spreadsheets: a heading, then a row for each run with the fixed settings, the swept
/// ones, and the figures of to_json() that are single values.
std::string to_csv(const std::vector<NamedText>& fixed, const std::vector<Swept>& sweep,
                   const std::vector<SimulatedCell>& cells);

/// One of the runs that `tessera simulate --format json` prints.
nlohmann::ordered_json to_json(const std::vector<Swept>& sweep, const SimulatedCell& cell);

/// Prints a row for each run of a sweep and what its columns mean. Where the table would be wider
/// than a terminal, the columns that say least are left out, and a line names them.
void print_sweep_table(std::ostream& out, const std::vector<Swept>& sweep,
                       const std::vector<SimulatedCell>& cells, const HardwareProfile& profile);

/// Predicts the step time of each run that comparisons have measured (each a results.json of
/// `tessera compare`), and prints both with the error of the prediction, then over all runs the
/// mean and worst error beside the spread of the runs themselves; as text or JSON, as the config
/// says. Gives the exit code. Throws Error{kNotFound, kConfig} that names the file if one is no
/// comparison or has no measured runs.
int check_simulation(std::ostream& out, const Config& config, const HardwareProfile& profile,
                     const std::vector<std::string>& results);

}  // namespace tessera::cli
