#pragma once

#include "gemm_arguments.h"
#include "tessera/core/cuda_device.h"

namespace tessera::cuda {

/// From the factor of A to that of B: each lies on 16 bytes, as cuBLASLt wants scales of blocks.
inline constexpr int kFactorStride = 4;

/// Writes the reciprocals of the scales of A and B of a GEMM in fp8 to the device.
void fp8_factors(const GemmArgs& args, float* factors, CudaStream& stream);

/// gemm_plain() of operands in fp8, whose reciprocals are there.
void gemm_plain_fp8(const GemmArgs& args, const GemmSizes& sizes, const float* factors,
                    CudaStream& stream);

}  // namespace tessera::cuda
