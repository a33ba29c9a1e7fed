#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "settings/sweep.h"
#include "tessera/compat/config.h"
#include "tessera/lab/comparison.h"
#include "tessera/lab/hardware_profile.h"

namespace tessera::cli {

/// The command line of `tessera compare`.
struct CompareRequest {
  Config config;  ///< of the runs, but for the axes
  std::vector<Swept> axes{};
  std::string folder{};
  bool resumes = false;
  bool only_simulates = false;
  std::optional<HardwareProfile> profile{};
  std::vector<std::string> command{};  ///< the program's arguments
};

/// The settings of one combination of the axes.
Config cell_config(const CompareRequest& request, const std::vector<std::string>& values);

/// Every cell planned, without running: those that cannot be planned, or do not fit the memory of
/// this machine (if nothing runs, of the profile's), are impossible and say why. `notes` gets why a
/// cell that can run has no predicted time. Throws Error if the data cannot be read.
Comparison plan_matrix(const CompareRequest& request, std::ostream& notes);

/// The flags of `tessera train` that run a cell.
std::vector<std::string> train_flags(const ComparedCell& cell);

}  // namespace tessera::cli
