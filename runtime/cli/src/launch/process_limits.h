#pragma once

#include "launch/launch_layout.h"

namespace tessera::cli {

/// Checks that this user may have as many open files and threads as the processes of this machine
/// need at least. Throws Error{kConfig} that names the limit and the number that fits.
void check_process_limits(const LaunchLayout& layout);

}  // namespace tessera::cli
