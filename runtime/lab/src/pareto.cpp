#include "tessera/lab/pareto.h"

#include <algorithm>

namespace tessera {

std::vector<bool> pareto_front(std::span<const ParetoPoint> points) {
  std::vector<bool> front;
  for (const ParetoPoint& point : points) {
    front.push_back(std::ranges::none_of(points, [&](const ParetoPoint& other) {
      return other.bytes <= point.bytes && other.seconds_per_token <= point.seconds_per_token &&
             (other.bytes < point.bytes || other.seconds_per_token < point.seconds_per_token);
    }));
  }
  return front;
}

}  // namespace tessera
