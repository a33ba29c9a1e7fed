#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

/// A stretch of compute actions [first, last] during which a unit occupies a slot.
struct Residency {
  int unit = 0;
  std::int64_t numel = 0;
  int first = 0;
  int last = 0;
  int issue = 0;  ///< compute action before which the unshard is issued
  int micro_step = 0;
  int slot = -1;
  std::int64_t begin = 0, end = 0;  ///< occupied interval; compute action c is at 2c + 1
};

/// Gives each residency the lowest slot that is free during its interval, and returns the slots'
/// sizes. Largest first, so that a small unit can sit in a big slot but never the other way round.
std::vector<std::int64_t> assign_slots(std::vector<Residency>& residencies);

}  // namespace tessera
