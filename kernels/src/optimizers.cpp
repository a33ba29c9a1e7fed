#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "dynamic_codes.h"
#include "tessera/core/error.h"
#include "tessera/kernels/factored_moments.h"
#include "tessera/kernels/optimizer.h"

namespace tessera {
namespace {

#define TESSERA_UPDATE_RULE inline
#include "optimizers/update_rules.h"

#include "optimizers/adafactor.h"

constexpr std::array<Optimizer, AllRules::kCount + 1> with_factored() {
  std::array<Optimizer, AllRules::kCount + 1> rows{};
  std::ranges::copy(AllRules::rows(), rows.begin());
  rows.back() = Adafactor::kRow;
  rows.back().rule = AllRules::kCount;
  return rows;
}

constexpr auto kOptimizers = with_factored();

template <typename Rows>
std::string names_of(const Rows& rows) {
  std::string names;
  for (const auto& row : rows) names += concat(names.empty() ? "" : ", ", row.name);
  return names.empty() ? "none" : names;
}

void check_range(const Optimizer& optimizer, const Hyperparameter& parameter, double value) {
  if (parameter.is_flag) {
    require(value == 0.0 || value == 1.0, ErrorCode::kConfig, optimizer.name, ": ", parameter.name,
            " is ", value, ", expected true or false");
    return;
  }
  require(value >= parameter.minimum && value < parameter.below, ErrorCode::kConfig, optimizer.name,
          ": ", parameter.name, " is ", value, ", expected a number from ", parameter.minimum,
          std::isinf(parameter.below) ? " on" : concat(" to below ", parameter.below));
}

}  // namespace

std::span<const Optimizer> optimizers() { return kOptimizers; }

const Optimizer& find_optimizer(std::string_view name) {
  const auto* const found = std::ranges::find_if(kOptimizers, [&](const Optimizer& optimizer) {
    return optimizer.name == name ||
           std::ranges::find(optimizer.other_names, name) != optimizer.other_names.end();
  });
  require(found != kOptimizers.end(), ErrorCode::kConfig, "unknown optimizer '", name,
          "'; there are ", names_of(kOptimizers));
  return *found;
}

std::vector<double> hyperparameter_values(
    const Optimizer& optimizer, std::span<const std::pair<std::string_view, double>> given) {
  const auto& parameters = optimizer.hyperparameters;
  std::vector<double> values;
  for (const Hyperparameter& parameter : parameters) values.push_back(parameter.value);
  for (const auto& [name, value] : given) {
    const auto found = std::ranges::find(parameters, name, &Hyperparameter::name);
    require(found != parameters.end(), ErrorCode::kConfig, optimizer.name,
            " has no hyperparameter '", name, "'; it has ", names_of(parameters));
    check_range(optimizer, *found, value);
    values[static_cast<std::size_t>(found - parameters.begin())] = value;
  }
  optimizer.check(values);
  return values;
}

std::span<const OptimizerState> optimizer_states(const Optimizer& optimizer,
                                                 std::span<const double> values) {
  return optimizer.states.first(static_cast<std::size_t>(optimizer.count_states(values)));
}

std::int64_t optimizer_block(const Optimizer& optimizer) {
  std::int64_t block = 1;
  for (const OptimizerState& state : optimizer.states) block = std::max(block, state.block);
  return block;
}

OptimizerScalars optimizer_scalars(const Optimizer& optimizer, std::span<const double> values,
                                   double learning_rate, std::int64_t step) {
  require(step >= 1, ErrorCode::kInvalidArgument, optimizer.name, ": step ", step,
          ", but steps are counted from 1");
  require(values.size() == optimizer.hyperparameters.size(), ErrorCode::kInvalidArgument,
          optimizer.name, ": ", values.size(), " hyperparameters, expected ",
          optimizer.hyperparameters.size());
  return optimizer.make_scalars(values, static_cast<float>(learning_rate), step);
}

}  // namespace tessera
