#pragma once

#include <cstddef>

namespace tessera {

/// Whether this process may map `bytes` more, and some mebibytes for small allocations besides.
/// Where addresses are limited (ulimit -v), whoever wants many asks first: then it is these that
/// are refused, while there is memory to say so, and not a few bytes somewhere in a library.
bool has_address_space(std::size_t bytes) noexcept;

/// The same for the stacks of so many threads.
bool has_address_space_for_threads(int count) noexcept;

}  // namespace tessera
