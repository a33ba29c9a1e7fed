#pragma once

#include <cuda_runtime_api.h>

#include "tessera/core/error.h"

namespace tessera::cuda {

/// Throws Error{kOutOfMemory or kInternal} that names `call` and what CUDA says of it.
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // an error that is not sticky must not be found again
  fail(status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal, call,
       " failed: ", cudaGetErrorName(status), ", ", cudaGetErrorString(status));
}

}  // namespace tessera::cuda

#define TESSERA_CUDA_CHECK(call) ::tessera::cuda::check((call), #call)
