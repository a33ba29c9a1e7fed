#pragma once

#include "block.h"

namespace tessera::emulator {

/// Writes what a thread's cp.async copies, but for those of its last `pending` groups.
void deliver_copies(Thread& thread, int pending);

}  // namespace tessera::emulator
