#pragma once

#include <nlohmann/json.hpp>

#include "tessera/sharding/schedule.h"

namespace tessera {

/// A schedule as JSON: the text form's fields by name, operands as the text writes them
/// ("+g1=h.3/shard"). `schedule_from_json` is its exact inverse; throws Error{kConfig} that says
/// where.
nlohmann::ordered_json to_json(const Schedule& schedule);
Schedule schedule_from_json(const nlohmann::ordered_json& json);

}  // namespace tessera
