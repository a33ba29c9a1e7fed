#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/cuda_device.h"
#include "thread/thread_group_state.h"

namespace tessera {

/// Issues an operation of a thread group whose buffers are on GPUs.
///
/// [Note: enqueued operations] Where lanes of the CPU wait for each other's progress, here host
/// threads do, at the same stages, as they issue the operation: what they exchange is addresses and
/// events. The streams then wait for events only, all of them recorded, so no order of waits can
/// lock a GPU up, and the host never waits for a GPU.
///
/// A rank meets its peers while it issues: operations of different groups must come in one order on
/// all ranks. A send or recv is the exception. The first of the two leaves its end behind and goes
/// on, since a ring sends before it receives; the second copies; and the first meets it when
/// something else is to enter its stream.
void enqueue_operation(const std::shared_ptr<ThreadGroupState>& state, int rank,
                       std::uint64_t sequence, const CollectiveCall& call, CudaStream& stream);

}  // namespace tessera
