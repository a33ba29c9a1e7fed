#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/core/thread_team.h"

namespace tessera::cpu {

/// Calls body(begin, end) on disjoint ranges that cover [0, count), on the team of the calling
/// thread. Every range but the last is a multiple of `grain`, and there are at most count / grain
/// of them, rounded up: small work stays on one thread.
///
/// The split depends on count, grain and team_threads() only. A kernel whose sums cross ranges
/// must combine them in range order to stay deterministic. Of exceptions, that of the first
/// range that has one is thrown, when all ranges are done.
template <typename Body>
void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  if (count <= 0) return;
  const std::int64_t chunks = (count + grain - 1) / grain;
  const std::int64_t n = std::min<std::int64_t>(team_threads(), chunks);
  on_team(static_cast<int>(n), [&](std::int64_t t) {
    const std::int64_t begin = chunks * t / n * grain;
    const std::int64_t end = std::min(count, chunks * (t + 1) / n * grain);
    body(begin, end);
  });
}

}  // namespace tessera::cpu
