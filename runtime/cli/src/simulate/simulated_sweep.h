#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "settings/sweep.h"
#include "simulate/simulated_run.h"

namespace tessera::cli {

/// A combination of swept settings.
struct SimulatedCell : SimulatedRun {
  std::vector<std::string> values{};
  bool is_best = false;  ///< no other has both less memory and less time for a token
};

struct SimulatedSweep {
  std::vector<SimulatedCell> cells{};
  std::vector<LeftOut> left_out{};  ///< combinations that cannot be
};

/// Simulates every combination, the last setting's values first; of no settings, the run itself.
SimulatedSweep simulate_sweep(const Config& config, const HardwareProfile& profile,
                              const std::vector<Swept>& sweep);

/// One of the runs that `tessera simulate --format json` prints.
nlohmann::ordered_json to_json(const std::vector<Swept>& sweep, const SimulatedCell& cell);

}  // namespace tessera::cli
