#pragma once

#include <iosfwd>
#include <string>

#include "tessera/compat/config.h"
#include "tessera/lab/hardware_profile.h"

namespace tessera::cli {

/// Predicts the step time of each run that a comparison has measured (results.json of `tessera
/// compare`), and prints both with the error of the prediction, mean and worst, beside the spread
/// of the runs themselves; as text or JSON, as the config says. Gives the exit code. Throws
/// Error{kNotFound, kConfig} that names the file if it is no comparison or has no measured runs.
int check_simulation(std::ostream& out, const Config& config, const HardwareProfile& profile,
                     const std::string& results);

}  // namespace tessera::cli
