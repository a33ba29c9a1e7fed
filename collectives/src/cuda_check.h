#pragma once

#include <cuda_runtime_api.h>

#include "tessera/core/error.h"

namespace tessera {

/// Throws Error{kInternal} that names `call` and what CUDA says of it.
inline void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // an error that is not sticky must not be found again
  fail(ErrorCode::kInternal, call, " failed: ", cudaGetErrorName(status), ", ",
       cudaGetErrorString(status));
}

}  // namespace tessera
