#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/kernels/kernel_table.h"

namespace tessera {

/// A number that an optimizer takes besides learning rate and weight decay.
struct Hyperparameter {
  std::string_view name;  ///< "beta1"
  double value = 0.0;     ///< unless told otherwise
  double minimum = 0.0;
  double below = std::numeric_limits<double>::infinity();
  bool is_flag = false;  ///< 0 or 1
  std::string_view meaning{};
};

/// A tensor that an optimizer keeps beside a parameter. Blocks of elements count from the
/// parameter's first one, in row-major order; the last block may be shorter.
struct OptimizerState {
  std::string_view name;  ///< "first-moment"
  DType dtype = DType::kFloat32;
  std::int64_t block = 1;  ///< elements of the parameter that it has one element for
};

/// A row of the table of optimizers. Adding one that updates element by element: a file in
/// kernels/src/optimizers, which holds its formula and this row, and its name in the list of
/// update_rules.h there. All devices compute by that formula, with the same bits.
struct Optimizer {
  std::string_view name;                            ///< "adamw"
  std::string_view title;                           ///< "AdamW (Loshchilov and Hutter 2019)"
  std::span<const std::string_view> other_names{};  ///< that other programs have for it
  std::span<const Hyperparameter> hyperparameters;
  double weight_decay = 0.0;               ///< unless told otherwise
  std::span<const OptimizerState> states;  ///< the most that it keeps; see optimizer_states
  bool states_optional = false;            ///< one that is absent counts as zeros

  // By place in `hyperparameters`; use the functions below.
  std::int64_t (*count_states)(std::span<const double> values);
  void (*check)(std::span<const double> values);
  OptimizerScalars (*make_scalars)(std::span<const double> values, float learning_rate,
                                   std::int64_t step);

  int rule = 0;  ///< place in the table
};

/// "adamw", "sgd".
std::span<const Optimizer> optimizers();
/// By its name, or one of its others. Throws Error{kConfig}, which names those that there are.
const Optimizer& find_optimizer(std::string_view name);

/// A value for each of Optimizer::hyperparameters, in that order: its default, or what is given for
/// its name. Throws Error{kConfig} on a name that is none, and on values that are out of range or
/// do not fit together.
std::vector<double> hyperparameter_values(
    const Optimizer& optimizer, std::span<const std::pair<std::string_view, double>> given = {});

/// The tensors that the optimizer keeps with these values: all bytes are zero before the first
/// step. SGD without momentum has none.
std::span<const OptimizerState> optimizer_states(const Optimizer& optimizer,
                                                 std::span<const double> values);
/// Whether it keeps a number for each row and column of a matrix: its steps are those of
/// factored_moments.h, and not KernelTable::optimizer_step.
constexpr bool is_factored(const Optimizer& optimizer) {
  return !optimizer.states.empty() && optimizer.states.front().block == kFactoredBlock;
}
/// The elements that share the most with each other: segments of a step begin at multiples of it.
std::int64_t optimizer_block(const Optimizer& optimizer);

/// OptimizerStepArgs::scalars of a step, counted from 1.
OptimizerScalars optimizer_scalars(const Optimizer& optimizer, std::span<const double> values,
                                   double learning_rate, std::int64_t step);

}  // namespace tessera
