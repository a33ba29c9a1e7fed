#include <cmath>

#include "tessera/core/error.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {

std::array<float, kAdamWScalars> adamw_scalars(float learning_rate, float beta1, float beta2,
                                               std::int64_t t) {
  require(t >= 1, ErrorCode::kInvalidArgument, "adamw: step ", t, ", but steps are counted from 1");
  const auto steps = static_cast<double>(t);
  const double correction1 = 1.0 - std::pow(static_cast<double>(beta1), steps);
  const double correction2 = 1.0 - std::pow(static_cast<double>(beta2), steps);
  std::array<float, kAdamWScalars> scalars{};
  scalars[kAdamWLearningRate] = learning_rate;
  scalars[kAdamWStepSize] = static_cast<float>(static_cast<double>(learning_rate) / correction1);
  scalars[kAdamWInverseCorrection2] = static_cast<float>(1.0 / std::sqrt(correction2));
  scalars[kAdamWGradientScale] = 1.0F;
  return scalars;
}

}  // namespace tessera
