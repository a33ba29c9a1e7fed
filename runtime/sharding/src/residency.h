#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// Positions on the compute lane: before an action, and during it.
constexpr std::int64_t before(std::int64_t compute) { return 2 * compute; }
constexpr std::int64_t during(std::int64_t compute) { return 2 * compute + 1; }

/// A stretch of compute actions [first, last] during which a unit occupies a slot.
struct Residency {
  int unit = 0;
  std::int64_t numel = 0;
  int first = 0;
  int last = 0;
  int issue = 0;  ///< compute action before which the unshard is issued
  int micro_step = 0;
  int slot = -1;
  std::int64_t begin = 0, end = 0;  ///< occupied, both inclusive: positions as above
};

/// Gives each residency the lowest slot that is free during its interval, and returns the slots'
/// sizes. Largest first, so that a small unit can sit in a big slot but never the other way round.
std::vector<std::int64_t> assign_slots(std::vector<Residency>& residencies);

}  // namespace tessera
