#pragma once

#include "tessera/kernels/kernel_table.h"

// Demands of the kernels of the elementwise family on their arguments, on every device. Each
// check throws Error{kInvalidArgument} that names what does not fit.
namespace tessera {

void check_arguments(const GeluForwardArgs& args);
void check_arguments(const GeluBackwardArgs& args);
void check_arguments(const SiluForwardArgs& args);
void check_arguments(const SiluBackwardArgs& args);
void check_arguments(const ReluForwardArgs& args);
void check_arguments(const ReluBackwardArgs& args);
void check_arguments(const SwigluForwardArgs& args);
void check_arguments(const SwigluBackwardArgs& args);
void check_arguments(const SoftCapArgs& args);
void check_arguments(const ScaleColumnsForwardArgs& args);
void check_arguments(const ScaleColumnsBackwardArgs& args);
void check_arguments(const DropoutArgs& args);
void check_arguments(const CastArgs& args);
void check_arguments(const AddArgs& args);
void check_arguments(const FillArgs& args);
void check_arguments(const FillNormalArgs& args);
void check_arguments(const OrderedSumArgs& args);
void check_arguments(const BiasGradientArgs& args);
void check_arguments(const SquaredErrorArgs& args);
void check_arguments(const MultiplyArgs& args);
void check_arguments(const SoftmaxForwardArgs& args);
void check_arguments(const SoftmaxBackwardArgs& args);
void check_arguments(const MeanRowsForwardArgs& args);
void check_arguments(const MeanRowsBackwardArgs& args);
/// Not whether each token is in the vocabulary: that takes reading them.
void check_arguments(const EmbeddingForwardArgs& args);
void check_arguments(const EmbeddingBackwardArgs& args);

}  // namespace tessera
