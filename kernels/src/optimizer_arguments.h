#pragma once

#include "tessera/kernels/optimizer.h"

namespace tessera {

/// What OptimizerStepArgs must satisfy on every device: throws Error{kInvalidArgument} unless
/// shapes, dtypes and segments fit.
void check_optimizer_step(const OptimizerStepArgs& args);

/// The elements of a state; null if the optimizer does not keep it.
inline float* state_data(const OptimizerStepArgs& args, std::size_t state) {
  return state < args.states.size() ? reinterpret_cast<float*>(args.states[state].data) : nullptr;
}

}  // namespace tessera
