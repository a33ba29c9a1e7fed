#pragma once

#include <string>

namespace tessera::cli {

/// The config file that a run would take: `given`, else the default file of Accelerate.
struct ConfigInForce {
  std::string description{};  ///< whose keys it has, and what a run would make of them
  bool readable = true;       ///< false if it is missing or wrong; the description says how
};
ConfigInForce config_in_force(const std::string& given);

}  // namespace tessera::cli
