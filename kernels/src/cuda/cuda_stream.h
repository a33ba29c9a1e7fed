#pragma once

#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"

namespace tessera::cuda {

/// The stream as the CudaStream that the CUDA kernels need. Throws Error{kInvalidArgument}.
inline CudaStream& cuda_stream(Stream& stream) {
  auto* const result = dynamic_cast<CudaStream*>(&stream);
  require(result != nullptr, ErrorCode::kInvalidArgument,
          "a CUDA kernel was given a stream of another device");
  return *result;
}

}  // namespace tessera::cuda
