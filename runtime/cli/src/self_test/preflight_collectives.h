#pragma once

#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"

namespace tessera::cli {

/// All-gathers, reduce-scatters and all-reduces numbers whose sums depend on their order, and
/// compares every bit with the sum in rank order. `device` is a CPU. Every rank must call it.
/// Throws Error{kInternal} that names the collective, the element and both numbers.
void check_collectives(ProcessGroup& group, Device& device);

}  // namespace tessera::cli
