#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/core/cuda_device.h"
#include "tessera/core/segment_pool.h"

namespace tessera::cuda {

/// Device memory in segments that are taken from `source` and given back when the pool dies, as
/// SegmentPool serves them: a step that repeats finds the same addresses, which is what a captured
/// graph needs.
class MemoryPool {
 public:
  MemoryPool(int ordinal, CudaSegments source)
      : ordinal_(ordinal),
        source_(std::move(source)),
        pool_([this](std::size_t wanted, std::size_t needed) { return grow(wanted, needed); }) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Aligned to 512 bytes. Throws Error{kOutOfMemory} with what the GPU has left.
  void* allocate(std::size_t bytes);
  void deallocate(void* address) noexcept;
  std::int64_t reserved_bytes() const;
  /// Requests that had to go to the driver.
  std::int64_t growths() const;

 private:
  /// Takes memory of the current device; null if there is not as much left.
  void* take(std::size_t bytes) const;
  SegmentPool::Segment grow(std::size_t wanted, std::size_t needed);

  const int ordinal_;
  const CudaSegments source_;
  mutable std::mutex mutex_;
  SegmentPool pool_;
  std::vector<void*> segments_;
};

}  // namespace tessera::cuda
