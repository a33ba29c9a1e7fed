#pragma once

#include <cudnn.h>
#include <cudnn_backend.h>

#include <cstdint>
#include <map>
#include <vector>

// A cuDNN without kernels: it answers as it is told, and keeps what it was asked to run. Threads
// may call it at the same time, but with a handle, or a plan, of their own: else
// CUDNN_STATUS_BAD_PARAM.
struct StubEngine {
  bool deterministic = true;
  bool makes_plans = true;
  std::int64_t workspace_bytes = 0;
};

struct StubExecution {
  std::size_t engine = 0;
  std::map<std::int64_t, void*> tensors{};  ///< without scalars
  void* workspace = nullptr;
  cudaStream_t stream = nullptr;  ///< of the handle
};

struct StubCudnn {
  cudnnStatus_t graph = CUDNN_STATUS_SUCCESS;       ///< says an operation graph's finalize
  cudnnStatus_t heuristics = CUDNN_STATUS_SUCCESS;  ///< says the heuristic's
  std::vector<StubEngine> engines{{}};              ///< in the heuristic's order

  int graphs = 0;  ///< described so far
  std::vector<StubExecution> executions{};
};

/// Exported under this name.
extern "C" StubCudnn* stub_cudnn();
