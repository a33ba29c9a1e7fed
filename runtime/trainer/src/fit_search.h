#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "tessera/core/error.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

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
