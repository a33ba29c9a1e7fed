#pragma once

#include <vector>

#include "tessera/lab/simulate_step.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/timeline.h"

namespace tessera {

/// The spans of pipeline ranks that ran side by side, by pipeline rank, in which a message, and
/// what all ranks of a step meet in, begins when the last of those who meet has come. `ranks`: the
/// programs of which the first ran.
std::vector<std::vector<ActionSpan>> without_waiting(
    std::vector<std::vector<ActionSpan>> spans, const std::vector<std::vector<Program>>& ranks);

/// Where the time of one pipeline rank went, per step. `spans`: those of without_waiting(), of so
/// many steps; `step_seconds`: of one.
StageTime stage_time(const std::vector<ActionSpan>& spans, double steps, double step_seconds);

}  // namespace tessera
