#pragma once

#include <cstddef>

namespace tessera {

/// Copies between buffers that do not overlap, on the threads of the calling stream.
void copy_bytes(std::byte* destination, const std::byte* source, std::size_t bytes);

}  // namespace tessera
