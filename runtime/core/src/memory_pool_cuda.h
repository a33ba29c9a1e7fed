#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tessera/core/cuda_device.h"

namespace tessera::cuda {

/// Device memory in segments that are taken from `source` and given back when the pool dies. A
/// request is served from the smallest free block that holds it; neighbours that are free merge.
/// The choice depends on the sequence of requests only: a step that repeats finds the same
/// addresses, which is what a captured graph needs.
class MemoryPool {
 public:
  MemoryPool(int ordinal, CudaSegments source) : ordinal_(ordinal), source_(std::move(source)) {}
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
  using Address = std::uintptr_t;
  struct Block {
    std::size_t bytes = 0;
    bool free = false;
    bool first_of_segment = false;  ///< does not merge with what lies before it
  };
  using Blocks = std::map<Address, Block>;

  Blocks::iterator grow(std::size_t bytes);
  /// Of the current device; null if there is not as much left.
  void* take(std::size_t bytes) const;
  void set_free(Blocks::iterator block, bool free);
  void merge_with_next(Blocks::iterator block);

  const int ordinal_;
  const CudaSegments source_;
  mutable std::mutex mutex_;
  Blocks blocks_;
  std::set<std::pair<std::size_t, Address>> free_;  ///< by size, then address
  std::vector<void*> segments_;
  std::int64_t reserved_ = 0;
};

}  // namespace tessera::cuda
