#include "split_groups.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tessera {

std::vector<std::vector<int>> split_groups(const std::vector<SplitSeat>& seats) {
  std::map<int, std::vector<std::pair<int, int>>> by_color;  // (key, rank)
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    by_color[seats[rank].color].emplace_back(seats[rank].key, static_cast<int>(rank));
  }
  std::vector<std::vector<int>> groups;
  for (auto& [color, members] : by_color) {
    std::sort(members.begin(), members.end());
    std::vector<int>& ranks = groups.emplace_back();
    for (const auto& [key, rank] : members) ranks.push_back(rank);
  }
  return groups;
}

}  // namespace tessera
