#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/device.h"

namespace tessera {

/// The host's memory and cores. A stream is a worker thread. Freed blocks are kept and handed out
/// again for requests of about the same size, since a training step asks for the same sizes over
/// and over and fresh pages from the kernel are slow to touch.
std::unique_ptr<Device> make_cpu_device();

/// Physical memory that could be given to new allocations now, in bytes (MemAvailable on Linux).
std::int64_t available_host_bytes();

}  // namespace tessera
