#pragma once

#include <span>
#include <vector>

namespace tessera {

/// The costs of a run; less is better.
struct ParetoPoint {
  double bytes = 0.0;              ///< of memory of a rank
  double seconds_per_token = 0.0;  ///< of a rank: the step's seconds times ranks / its tokens
};

/// By point: no other is at least as good in both and better in one.
std::vector<bool> pareto_front(std::span<const ParetoPoint> points);

}  // namespace tessera
