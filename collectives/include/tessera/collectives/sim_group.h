#pragma once

#include <memory>

#include "tessera/collectives/process_group.h"

namespace tessera {

/// Rank `rank` of a group of `size` ranks of which only this one exists: moves nothing, counts
/// calls and bytes. Time is charged by the stream that the caller submits to (see SimDevice).
std::unique_ptr<ProcessGroup> make_sim_group(int rank, int size);

}  // namespace tessera
