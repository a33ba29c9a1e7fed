#pragma once

#include <string>

#include "execution/step_buffers.h"
#include "tessera/sharding/groups.h"

namespace tessera {

/// Tells NCCL's groups which memory the schedule's collectives read and write, each buffer once per
/// group, so that it can do so in place where the machine allows it. Other groups need no telling.
/// Their memory must stay the device's until `groups` are destroyed. Returns a sentence if NCCL did
/// not register them all, which costs time and changes nothing else.
std::string register_buffers(const Schedule& schedule, const StepBuffers& buffers,
                             const RankGroups& groups);

}  // namespace tessera
