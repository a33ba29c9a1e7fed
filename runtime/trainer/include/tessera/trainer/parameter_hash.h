#pragma once

#include <string>
#include <vector>

#include "tessera/sharding/executor.h"

namespace tessera {

/// SHA-256, in hexadecimal, of the values of all parameters in the given order as little-endian
/// IEEE fp32. Names and shapes do not enter. Equal for equal training, however it was sharded.
std::string parameters_sha256(const std::vector<FullParameter>& parameters);

}  // namespace tessera
