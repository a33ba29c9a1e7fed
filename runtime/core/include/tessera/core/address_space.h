#pragma once

#include <cstddef>

namespace tessera {

/// Whether this process has a limit of it (ulimit -v).
bool is_address_space_limited() noexcept;

/// Whether this process may map `bytes` more, and some mebibytes for small allocations besides.
/// Whoever wants much asks first: then it is these bytes that are refused, while there is memory to
/// say so, and not a few somewhere in a library.
bool has_address_space(std::size_t bytes) noexcept;

/// The same for the stacks of so many threads.
bool has_address_space_for_threads(int count) noexcept;

}  // namespace tessera
