#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

#include "tessera/core/free_lists.h"

namespace tessera {

/// Host memory for the CPU device, kept after it is freed. Thread-safe.
///
/// Large blocks come from mmap with huge pages and are reused for requests of 80 to 100 % of their
/// size; small ones come from the C library and are reused for exactly their size.
class HostMemoryPool {
 public:
  HostMemoryPool() = default;
  HostMemoryPool(const HostMemoryPool&) = delete;
  HostMemoryPool& operator=(const HostMemoryPool&) = delete;
  ~HostMemoryPool();

  /// At least `bytes` bytes, aligned to 64. Throws Error{kOutOfMemory}.
  void* allocate(std::size_t bytes);
  void deallocate(void* address, std::size_t bytes) noexcept;

 private:
  void* allocate_large(std::size_t bytes);
  void* allocate_small(std::size_t bytes);
  void release_cached() noexcept;

  std::mutex mutex_;
  std::unordered_map<void*, std::size_t> used_large_;  // capacities
  std::multimap<std::size_t, void*> free_large_;       // by capacity
  FreeLists free_small_;
};

}  // namespace tessera
