#pragma once

#include "tessera/kernels/optimizer.h"

namespace tessera {

/// Checks what OptimizerStepArgs must satisfy on every device: throws Error{kInvalidArgument}
/// unless shapes, dtypes and segments fit.
void check_optimizer_step(const OptimizerStepArgs& args);

/// The elements of a state; null if the optimizer does not keep it.
template <typename T = float>
T* state_data(const OptimizerStepArgs& args, std::size_t state) {
  return state < args.states.size() ? reinterpret_cast<T*>(args.states[state].data) : nullptr;
}

}  // namespace tessera
