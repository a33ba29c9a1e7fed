#pragma once

#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"

namespace tessera::cli {

/// All-gathers, reduce-scatters and all-reduces numbers whose sums depend on their order, up to
/// 10,007 of them per rank, and compares every bit with the sum in rank order. A group over NCCL
/// must be a deterministic one. Every rank must call it.
/// Throws Error{kInternal} that names the collective, the element and both numbers.
void check_collectives(ProcessGroup& group, Device& device);

/// The result of a check that has thrown nothing.
inline constexpr const char* kCollectivesAreRight =
    "all-gather, reduce-scatter and all-reduce give the right bits";

}  // namespace tessera::cli
