#pragma once

#include "tessera/kernels/kernel_table.h"

// Demands of the kernels of exact sums on their arguments, on every device. Each check throws
// Error{kInvalidArgument} that names what does not fit.
namespace tessera {

void check_arguments(const ExactSquaresArgs& args);
void check_arguments(const ExactSumArgs& args);
void check_arguments(const StepResultsArgs& args);
void check_arguments(const LossScaleArgs& args);
void check_arguments(const FindNonFiniteArgs& args);
void check_arguments(const UpdateLossScalerArgs& args);

}  // namespace tessera
