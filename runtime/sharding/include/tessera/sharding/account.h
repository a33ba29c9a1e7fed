#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/disk_store.h"
#include "tessera/core/memory.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// Under which heading a buffer's memory is counted.
MemoryCategory category_of(const ScheduleBuffer& buffer);

/// Calls and bytes sent of one rank's collectives in one step, and bytes that it copies. Exact:
/// what the rows of the table of operations charge. The scalars are 8 and 448 bytes at any number
/// of ranks.
Traffic account_traffic(const Schedule& schedule);

/// Bytes that one rank reads and writes in its own memory in one step to add the gradients of
/// micro-steps to each other, or to round the sums: what the schedule's casts move. 12 for each
/// parameter and micro-step after the first, in fp32. [Note: sums of micro-steps] in plan.cpp says
/// why backward does not do it along the way.
std::int64_t account_gradient_sums(const Schedule& schedule);

/// Bytes that a rank holds in a tier from start to end: the schedule's buffers, but for snapshots.
/// Activations, data and the kernels' scratch depend on the layers and the batch, and are on the
/// device: see predict_memory in executor.h.
MemoryUse account_memory(const Schedule& schedule, Tier tier = Tier::kDevice);
/// For schedules that run over one state, in turn: buffers of the same name are one, as large as
/// the largest.
MemoryUse account_memory(std::span<const Schedule* const> schedules, Tier tier = Tier::kDevice);
/// The parts of a rank's file on disk: the state buffers that are there, in order.
std::vector<DiskExtent> disk_extents(std::span<const ScheduleBuffer> buffers);
/// Bytes of that file, header and padding included; 0: there is none.
std::int64_t account_disk(const Schedule& schedule);
/// Bytes of the host's memory that a rank holds for the schedule's snapshots.
std::int64_t account_snapshot(const Schedule& schedule);

}  // namespace tessera
