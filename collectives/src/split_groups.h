#pragma once

#include <vector>

namespace tessera {

/// A rank's arguments of ProcessGroup::split.
struct SplitSeat {
  int color = 0;
  int key = 0;
};

/// The groups that a split makes of `seats`, by rank: in the order of their colors, each the ranks
/// of the old group in the order of the new one, which is by (key, rank).
std::vector<std::vector<int>> split_groups(const std::vector<SplitSeat>& seats);

}  // namespace tessera
