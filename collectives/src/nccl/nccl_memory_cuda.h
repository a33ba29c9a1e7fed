#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "tessera/core/cuda_device.h"

namespace tessera::cuda {

/// The memory of this process that ncclMemAlloc gave out. Zero copies over NVLink and NVLink SHARP
/// need memory that the driver can share between GPUs, in whole pages: NCCL registers what
/// cudaMalloc gives out as well, but uses that only for InfiniBand SHARP, and says nothing. And it
/// registers with NVLink SHARP only what begins with a page (tryRegisterBuffer in NCCL's nvls.cc):
/// hence whole segments, not the buffers in them.
class NcclMemory {
 public:
  static NcclMemory& of_process();

  /// For a device's pool. Without `take`, if NCCL cannot give out memory of this GPU: see
  /// `problem`.
  CudaSegments segments(int gpu);

  struct Range {
    void* address = nullptr;
    std::size_t bytes = 0;
    bool of_nccl = false;
  };
  /// The segment that these bytes are part of; the bytes themselves if NCCL did not give them out.
  Range range_of(void* address, std::size_t bytes) const;
  /// Why memory is not NCCL's, in a clause.
  std::string problem() const;

 private:
  /// Null if there is not as much left.
  void* take(std::size_t bytes);
  void give_back(void* address);

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> segments_;  // guarded by mutex_
  std::string refusal_;                             // guarded by mutex_
};

}  // namespace tessera::cuda
