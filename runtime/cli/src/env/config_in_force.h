#pragma once

#include "env/report_part.h"

namespace tessera::cli {

/// The config file that a run would take, `given`, else the default file of Accelerate: whose keys
/// it has, and what a run would make of them.
struct ConfigInForce {
  ReportPart report{};
  bool readable = true;  ///< false if the file is missing or wrong; the report says how
};
ConfigInForce config_in_force(const std::string& given);

}  // namespace tessera::cli
