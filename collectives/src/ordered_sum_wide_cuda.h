#pragma once

#include <span>

#include "tessera/core/cuda_device.h"
#include "tessera/core/tensor.h"

namespace tessera::cuda {

/// dst = sources[0] + sources[1] + ..., fp64 or int64, in this order; dst may be one of them.
void ordered_sum_wide(std::span<const TensorView> sources, const TensorView& dst,
                      CudaStream& stream);

}  // namespace tessera::cuda
