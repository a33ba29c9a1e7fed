#pragma once

#include <string>
#include <vector>

#include "tessera/sharding/step_plan.h"
#include "tessera/sharding/timeline.h"

namespace tessera::cli {

/// A line for each pipeline rank, whose columns are equal parts of the step: what its compute lane
/// does in the middle of each. A digit is a forward, the last of its micro-step's number; a letter
/// a backward, "a" of the micro-steps 0, 10, ...; "+" an update; "." nothing. `spans`: of one step,
/// by pipeline rank.
std::vector<std::string> pipeline_picture(const StepPlan& step,
                                          const std::vector<std::vector<ActionSpan>>& spans);

}  // namespace tessera::cli
