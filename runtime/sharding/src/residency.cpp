#include "residency.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace tessera {

std::vector<std::int64_t> assign_slots(std::vector<Residency>& residencies) {
  std::vector<std::size_t> order(residencies.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return residencies[a].numel > residencies[b].numel;
  });
  std::vector<std::int64_t> slots;
  std::vector<std::map<std::int64_t, std::int64_t>> taken;  // per slot: begin -> end
  for (const std::size_t i : order) {
    Residency& r = residencies[i];
    const auto is_free = [&](const std::map<std::int64_t, std::int64_t>& intervals) {
      const auto next = intervals.lower_bound(r.begin);
      if (next != intervals.end() && next->first <= r.end) return false;
      return next == intervals.begin() || std::prev(next)->second < r.begin;
    };
    std::size_t slot = 0;
    while (slot < slots.size() && !is_free(taken[slot])) ++slot;
    if (slot == slots.size()) {
      slots.push_back(r.numel);
      taken.emplace_back();
    }
    taken[slot][r.begin] = r.end;
    r.slot = static_cast<int>(slot);
  }
  return slots;
}

}  // namespace tessera
