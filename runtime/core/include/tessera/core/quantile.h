#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

// How repeated measurements are summed up, wherever Tessera measures: a median or the mean of the
// middle half, and the spread.
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

/// The places between the quartiles in a sorted list of `count`, the first and the one after the
/// last: of one or two all, of three the middle one.
inline std::pair<std::size_t, std::size_t> middle_half(std::size_t count) {
  return {(count + 1) / 4, count - (count + 1) / 4};
}

/// The mean of the values between the quartiles; 0 of none. Means of parts add up to that of the
/// whole, which medians do not, and what happens in a quarter of all cases moves it no further.
inline double interquartile_mean(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const auto [begin, end] = middle_half(values.size());
  double sum = 0.0;
  for (std::size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

/// The distance between the quartiles over the median; 0 of none.
inline double relative_spread(const std::vector<double>& values) {
  const double middle = median(values);
  return middle > 0.0 ? (quantile(values, 0.75) - quantile(values, 0.25)) / middle : 0.0;
}

}  // namespace tessera
