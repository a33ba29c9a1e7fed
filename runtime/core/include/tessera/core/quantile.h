#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

// How repeated measurements are summed up, wherever Tessera measures: a median, and its spread, or
// what was disturbed least.
namespace tessera {

/// The value at `share` of the way in a sorted copy, between two in proportion; 0 of none.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

/// The share of a CPU's repetitions, the fastest, that count as undisturbed. Whatever else a
/// machine does makes a repetition slower and none faster, so that the fastest ones say what the
/// code takes (Chen and Revels, Robust benchmarking in noisy environments, 2016), and can be
/// repeated on a machine that is shared.
inline constexpr double kUndisturbed = 0.1;

/// How many of `count` repetitions count as undisturbed, the fastest: one at least.
inline std::size_t undisturbed_of(std::size_t count) {
  return std::max<std::size_t>(1,
                               static_cast<std::size_t>(kUndisturbed * static_cast<double>(count)));
}

/// The median of the values that count as undisturbed; 0 of none.
inline double undisturbed(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  values.resize(std::min(values.size(), undisturbed_of(values.size())));
  return median(std::move(values));
}

/// The distance between the quartiles over the median; 0 of none.
inline double relative_spread(const std::vector<double>& values) {
  const double middle = median(values);
  return middle > 0.0 ? (quantile(values, 0.75) - quantile(values, 0.25)) / middle : 0.0;
}

}  // namespace tessera
