#pragma once

#include <span>
#include <vector>

namespace tessera {

/// The costs of a run; less is better.
struct ParetoPoint {
  double bytes = 0.0;              ///< of memory of a rank
  double seconds_per_token = 0.0;  ///< of a rank: the step's seconds times ranks / its tokens
  double half_width = 0.0;         ///< of seconds_per_token, relative; 0: it is certain
};

/// By point: no other is at least as good in both and better in one.
std::vector<bool> pareto_front(std::span<const ParetoPoint> points);

/// By point: another one that needs no more bytes has a time that may be less or more than this
/// one's, as far as their intervals say, so whether it belongs to the front is open.
std::vector<bool> cannot_be_told_apart(std::span<const ParetoPoint> points);

}  // namespace tessera
