#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "settings/sweep.h"
#include "simulate/simulated_run.h"
#include "tessera/core/named_text.h"

namespace tessera::cli {

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

}  // namespace tessera::cli
