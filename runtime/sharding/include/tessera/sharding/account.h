#pragma once

#include <cstdint>

#include "tessera/collectives/process_group.h"
#include "tessera/core/memory.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// What one rank's collectives of one step come to: calls and bytes sent. Exact: one term per
/// action. The scalars of kCountItems and kExchange are 8 and 448 bytes at any number of ranks.
Traffic account_traffic(const Schedule& schedule);

/// Bytes that a rank holds from start to end: parameters, slots, gradients, optimizer state.
/// Activations, workspace and data depend on the layers and the batch: see predict_memory in
/// executor.h.
MemoryUse account_memory(const Schedule& schedule);

}  // namespace tessera
