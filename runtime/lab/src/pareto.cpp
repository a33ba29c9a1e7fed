#include "tessera/lab/pareto.h"

#include <algorithm>
#include <cmath>

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

std::vector<bool> cannot_be_told_apart(std::span<const ParetoPoint> points) {
  std::vector<bool> open;
  const auto overlap = [](const ParetoPoint& a, const ParetoPoint& b) {
    const double reach = a.half_width * a.seconds_per_token + b.half_width * b.seconds_per_token;
    return reach > 0.0 && std::abs(a.seconds_per_token - b.seconds_per_token) <= reach;
  };
  for (const ParetoPoint& point : points) {
    open.push_back(std::ranges::any_of(points, [&](const ParetoPoint& other) {
      return &other != &point && other.bytes <= point.bytes && overlap(other, point);
    }));
  }
  return open;
}

}  // namespace tessera
