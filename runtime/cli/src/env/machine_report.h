#pragma once

#include "env/report_part.h"

namespace tessera::cli {

/// System, processor and memory.
ReportPart machine_report();

}  // namespace tessera::cli
