#pragma once

#include <memory>

#include "tessera/collectives/process_group.h"
#include "world/world_group_state.h"

namespace tessera {

/// One rank's end of a group that spans processes.
std::unique_ptr<ProcessGroup> make_world_group(std::shared_ptr<WorldGroupState> state);

}  // namespace tessera
