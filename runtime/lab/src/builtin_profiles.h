#pragma once

#include <vector>

#include "tessera/lab/hardware_profile.h"

namespace tessera {

std::vector<HardwareProfile> all_builtin_profiles();

}  // namespace tessera
