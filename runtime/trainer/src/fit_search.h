#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// All divisors of a positive number, ascending.
inline std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> small, large;
  for (std::int64_t d = 1; d <= number / d; ++d) {
    if (number % d != 0) continue;
    small.push_back(d);
    if (d != number / d) large.push_back(number / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

/// A search among ways to run a model on its data.
struct FitSearch {
  RunInputs inputs;
  std::size_t candidates = 0;
  /// The options of a candidate; nothing if it needs no plan.
  std::function<std::optional<TrainerOptions>(std::size_t candidate)> options;
  /// Judges the plan of a candidate. True ends the search.
  std::function<bool(std::size_t candidate, const TrainingPlan& plan)> takes;
  /// Hears of a candidate that cannot be planned (Error{kConfig}). Unset: that ends the search.
  std::function<void(const Error& error)> refused{};
};

/// Plans the candidates in order; returns the one that the search takes.
std::optional<std::size_t> first_fit(const FitSearch& search);

}  // namespace tessera
