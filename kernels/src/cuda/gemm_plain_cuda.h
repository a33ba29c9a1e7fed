#pragma once

#include "gemm_arguments.h"
#include "tessera/core/cuda_device.h"

namespace tessera::cuda {

/// C = op(A) op(B) [+ bias] [+ C] of `args`, the rest of which is not looked at, with `sizes.k`
/// terms per element: 0 makes it C = [C +] [bias]. Takes every shape, stride and alignment; slow.
void gemm_plain(const GemmArgs& args, const GemmSizes& sizes, CudaStream& stream);

}  // namespace tessera::cuda
