#pragma once

#include <cstdint>

namespace tessera {

/// Rows of a head's statistics are padded to a multiple of every tile's height, so that kernels
/// read them without a bound; a padding query has no weight.
inline constexpr int kStatisticsPadding = 128;

}  // namespace tessera
