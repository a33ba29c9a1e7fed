#pragma once

#include "env/report_part.h"

namespace tessera::cli {

/// The launcher that has started this process, and the variables that change what a run does.
ReportPart launch_report();

}  // namespace tessera::cli
