#include <algorithm>
#include <array>

#include "tessera/kernels/optimizer.h"

namespace tessera {

std::array<float, kAdamWScalars> adamw_scalars(float learning_rate, float beta1, float beta2,
                                               std::int64_t t) {
  const Optimizer& adamw = find_optimizer("adamw");
  const double beta1_wide = static_cast<double>(beta1), beta2_wide = static_cast<double>(beta2);
  const auto values =
      hyperparameter_values(adamw, std::array<std::pair<std::string_view, double>, 2>{
                                       {{"beta1", beta1_wide}, {"beta2", beta2_wide}}});
  const OptimizerScalars first = optimizer_scalars(adamw, values, learning_rate, t);
  std::array<float, kAdamWScalars> scalars{};
  std::ranges::copy(first, scalars.begin());
  scalars[kAdamWGradientScale] = 1.0F;
  return scalars;
}

void KernelTable::adamw(const AdamWArgs& args, Stream& stream) const {
  constexpr std::int64_t kFirst = 3;  // the constants follow what adamw_scalars makes
  const std::array constants{args.beta1, args.beta2, args.epsilon};
  for (std::size_t i = 0; i < constants.size(); ++i) {
    fill({.dst = args.scalars.narrow(0, kFirst + static_cast<std::int64_t>(i), 1),
          .value = constants[i]},
         stream);
  }
  const std::array states{args.m, args.v};
  optimizer_step({.optimizer = &find_optimizer("adamw"),
                  .master = args.master,
                  .gradient = args.gradient,
                  .states = states,
                  .parameter = args.parameter,
                  .segments = args.segments,
                  .scalars = args.scalars.narrow(0, 0, kOptimizerScalars),
                  .gradient_scale = args.scalars.narrow(0, kAdamWGradientScale, 1),
                  .stochastic_rounding = args.stochastic_rounding,
                  .rounding_key = args.rounding_key,
                  .first_index = args.first_index},
                 stream);
}

}  // namespace tessera
