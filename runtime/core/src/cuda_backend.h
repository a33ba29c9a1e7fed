#pragma once

#include "tessera/core/cuda_device.h"

// Functions that the CUDA backend exports for core, by name: the one seam of program and module.
// The kernels and collectives that it holds export theirs in the same way.
namespace tessera {

using MakeCudaDevice = CudaDevice*(const CudaDeviceOptions& options);
inline constexpr const char* kMakeCudaDevice = "tessera_cuda_make_device";

/// Fills all but `module`.
using FillCudaStatus = void(CudaStatus& status);
inline constexpr const char* kFillCudaStatus = "tessera_cuda_fill_status";

}  // namespace tessera
