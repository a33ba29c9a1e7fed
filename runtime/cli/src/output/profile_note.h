#pragma once

#include <ostream>

#include "tessera/lab/hardware_profile.h"

namespace tessera::cli {

/// A line if the profile was measured on a busy machine: what it predicts is then too slow.
void note_noise(std::ostream& out, const HardwareProfile& profile);

}  // namespace tessera::cli
