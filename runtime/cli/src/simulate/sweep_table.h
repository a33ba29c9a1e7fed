#pragma once

#include <iosfwd>
#include <vector>

#include "settings/sweep.h"
#include "simulate/simulated_sweep.h"
#include "tessera/lab/hardware_profile.h"

namespace tessera::cli {

/// Prints a row for each run of a sweep and what its columns mean. Where the table would be wider
/// than a terminal, the columns that say least are left out, and a line names them.
void print_sweep_table(std::ostream& out, const std::vector<Swept>& sweep,
                       const std::vector<SimulatedCell>& cells, const HardwareProfile& profile);

}  // namespace tessera::cli
