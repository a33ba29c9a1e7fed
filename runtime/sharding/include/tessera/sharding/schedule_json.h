#pragma once

#include <nlohmann/json.hpp>

#include "tessera/sharding/schedule.h"
#include "tessera/sharding/step_plan.h"

namespace tessera {

/// A schedule as JSON: the text form's fields by name, operands as the text writes them
/// ("+g1=h.3/shard"). `schedule_from_json` is its exact inverse; throws Error{kConfig} that says
/// where.
nlohmann::ordered_json to_json(const Schedule& schedule);
Schedule schedule_from_json(const nlohmann::ordered_json& json);

/// {"pipeline_ranks": [...]}, a schedule for each; of one rank the schedule's own object.
/// `step_plan_from_json` is its exact inverse; throws Error{kConfig} that names the pipeline rank.
nlohmann::ordered_json to_json(const StepPlan& step);
StepPlan step_plan_from_json(const nlohmann::ordered_json& json);

}  // namespace tessera
