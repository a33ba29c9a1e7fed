#pragma once

#include <span>

#include "tessera/collectives/nccl_group.h"
#include "tessera/core/cuda_device.h"

// The CUDA backend's exports for process groups: the seam between the library and the module.
namespace tessera {

/// One copy of a list that may run in any order: the destinations do not overlap.
struct CopyRange {
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  std::int64_t bytes = 0;
};

struct CudaCollectives {
  /// Throws Error{kInvalidArgument} if a graph is being captured: what ranks wait for differs from
  /// run to run.
  void (*require_no_capture)(std::string_view operation, CudaStream& stream);
  /// Lets kernels of GPU `from` read memory of GPU `to`. Throws Error{kUnavailable} if it cannot.
  void (*enable_peer_access)(int from, int to);
  /// Enqueues the copies, between any GPUs that reach each other.
  void (*copy)(std::span<const CopyRange> ranges, CudaStream& stream);
  /// dst = sources[0] + sources[1] + ..., fp64 or int64, in this order; dst may be one of them.
  void (*ordered_sum_wide)(std::span<const TensorView> sources, const TensorView& dst,
                           CudaStream& stream);
  NcclId (*make_nccl_id)();
  CudaSegments (*nccl_segments)(int gpu);
  NcclGroup* (*make_nccl_group)(const NcclId& id, int rank, int size,
                                const NcclGroupOptions& options);
};

/// Throws Error{kUnavailable} if there is no CUDA backend.
const CudaCollectives& cuda_collectives();

using GetCudaCollectives = const CudaCollectives*();
inline constexpr const char* kGetCudaCollectives = "tessera_cuda_collectives";

}  // namespace tessera
