#pragma once

#include "tessera/kernels/kernel_table.h"

// Demands of the kernels of factored second moments on their arguments, on every device. Each check
// throws Error{kInvalidArgument} that names what does not fit.
namespace tessera {

void check_arguments(const FactoredSquaresArgs& args);
void check_arguments(const FactoredMomentsArgs& args);
void check_arguments(const FactoredUpdateSquaresArgs& args);
void check_arguments(const FactoredStepArgs& args);

}  // namespace tessera
