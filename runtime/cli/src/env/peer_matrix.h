#pragma once

#include <vector>

#include "output/text_table.h"
#include "tessera/core/cuda_device.h"

namespace tessera::cli {

/// Which GPU reaches the memory of which: a row and a column for each, "yes" or "no".
TextTable peer_matrix(const std::vector<CudaGpu>& gpus);

}  // namespace tessera::cli
