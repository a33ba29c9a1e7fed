#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tessera/core/host_work.h"
#include "tessera/core/segment_pool.h"

namespace tessera::cuda {

/// Pinned host memory, which copies to and from a GPU read and write without blocking the host.
///
/// Registering memory with CUDA costs about 0.1 s per GB, so it is done once: the first request
/// takes an arena of `arena_bytes`, the planned use of the run, and the others are cut from it.
/// Blocks that do not fit get segments of their own. Segments are mapped with huge pages and
/// touched by threads on the CPUs of the one that asks: if it is bound to a NUMA node, they lie
/// there.
class PinnedPool {
 public:
  /// `work`: counts the touching, and may end it; may be null.
  PinnedPool(std::int64_t arena_bytes, HostWork* work)
      : arena_bytes_(arena_bytes),
        work_(work),
        pool_([this](std::size_t /*wanted*/, std::size_t needed) { return grow(needed); }) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// Aligned to 512 bytes. Throws Error{kOutOfMemory}.
  void* allocate(std::size_t bytes);
  void deallocate(void* address) noexcept;

 private:
  SegmentPool::Segment grow(std::size_t needed);

  const std::int64_t arena_bytes_;
  HostWork* const work_;
  std::mutex mutex_;
  SegmentPool pool_;
  std::vector<SegmentPool::Segment> segments_;
};

}  // namespace tessera::cuda
