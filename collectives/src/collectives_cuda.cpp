#include <cuda_runtime_api.h>

#include "cuda_check.h"
#include "cuda_collectives.h"
#include "nccl/nccl_group_cuda.h"
#include "nccl/nccl_memory_cuda.h"
#include "ordered_sum_wide_cuda.h"
#include "tessera/core/error.h"

// Functions that the CUDA backend exports for process groups.
namespace tessera {
namespace {

void require_no_capture(std::string_view operation, CudaStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream.handle(), &status), "cudaStreamIsCapturing");
  require(status == cudaStreamCaptureStatusNone, ErrorCode::kInvalidArgument, operation,
          " of a thread group cannot be captured as a graph: ranks meet on the host each time; run "
          "such steps without graphs");
}

void enable_peer_access(int from, int to) {
  int possible = 0;
  check_cuda(cudaDeviceCanAccessPeer(&possible, from, to), "cudaDeviceCanAccessPeer");
  require(possible != 0, ErrorCode::kUnavailable, "GPU ", from, " cannot reach the memory of GPU ",
          to, " directly, as ranks of one process need to; use one process per GPU with NCCL");
  check_cuda(cudaSetDevice(from), "cudaSetDevice");
  const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());  // another group has done so
    return;
  }
  check_cuda(status, "cudaDeviceEnablePeerAccess");
}

void copy(std::span<const CopyRange> ranges, CudaStream& stream) {
  for (const CopyRange& range : ranges) {
    check_cuda(
        cudaMemcpyAsync(range.destination, range.source, static_cast<std::size_t>(range.bytes),
                        cudaMemcpyDefault, stream.handle()),
        "cudaMemcpyAsync");
  }
}

CudaSegments nccl_segments_of(int gpu) { return cuda::NcclMemory::of_process().segments(gpu); }

constexpr CudaCollectives kCollectives{.require_no_capture = require_no_capture,
                                       .enable_peer_access = enable_peer_access,
                                       .copy = copy,
                                       .ordered_sum_wide = cuda::ordered_sum_wide,
                                       .make_nccl_id = cuda::make_nccl_id,
                                       .nccl_segments = nccl_segments_of,
                                       .make_nccl_group = cuda::make_nccl_group};

}  // namespace
}  // namespace tessera

extern "C" __attribute__((visibility("default"))) const tessera::CudaCollectives*
tessera_cuda_collectives() {
  return &tessera::kCollectives;
}
