#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/lab/comparison.h"

namespace tessera::cli {

/// The log (--log) of a run of `steps` steps, of which the first `untimed_steps` are not timed.
/// Throws Error{kIo} that names the file and the line if it is cut off or is no such log.
CellRun read_run_log(const std::string& path, std::int64_t steps, std::int64_t untimed_steps);

/// The lanes of rank 0 in a trace (--trace) of one step, in seconds from its begin; of a pipeline,
/// whose stages have `ranks_of_stage` each, those of the first rank of every stage, where a message
/// begins when both ranks have come to it. Actions without work are left out. Throws Error{kIo}
/// that names the file.
std::vector<LaneSpan> read_timeline(const std::string& path, std::int64_t ranks_of_stage);

}  // namespace tessera::cli
