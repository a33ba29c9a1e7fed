#pragma once

#include "tessera/core/cuda_device.h"

namespace tessera::cuda {

/// Everything of CudaStatus but `module`.
void fill_status(CudaStatus& status);

}  // namespace tessera::cuda
