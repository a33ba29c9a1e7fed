#pragma once

#include <cstdint>

namespace tessera::test {

/// From here on counts this program's calls of operator new, on all threads, and lets `failures` of
/// them fail, beginning with number `first` (counted from 0).
void fail_allocations(std::int64_t first, std::int64_t failures);

/// Calls since then.
std::int64_t allocations();

}  // namespace tessera::test
