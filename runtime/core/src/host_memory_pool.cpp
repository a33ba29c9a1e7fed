#include "host_memory_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "tessera/core/error.h"
#include "tessera/core/round_up.h"

namespace tessera {
namespace {

constexpr std::size_t kLargeBytes = 256U << 10U;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = 2U << 20U;

// A pooled block would hide a use after free from AddressSanitizer.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kPooling = false;
#else
constexpr bool kPooling = true;
#endif

/// `bytes` (whole pages) aligned to a huge page, or nullptr.
void* map_pages(std::size_t bytes) {
  const std::size_t mapped = bytes + kHugePageBytes;
  void* const raw =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  // Trim what lies before and after the aligned range.
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = round_up(begin, kHugePageBytes);
  if (aligned > begin) munmap(raw, aligned - begin);
  const std::size_t tail = begin + mapped - (aligned + bytes);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  void* const block = reinterpret_cast<void*>(aligned);
  madvise(block, bytes, MADV_HUGEPAGE);  // a hint: without huge pages the block is only slower
  return block;
}

}  // namespace

HostMemoryPool::~HostMemoryPool() { release_cached(); }

void* HostMemoryPool::allocate(std::size_t bytes) {
  // No block is bigger than this on any machine; above it the sums below would wrap.
  require(bytes <= (std::size_t{1} << 60U), ErrorCode::kOutOfMemory, "cannot allocate ", bytes,
          " bytes of host memory");
  bytes = round_up(std::max<std::size_t>(bytes, 1), 64);
  const std::lock_guard lock(mutex_);
  void* block = kPooling && bytes >= kLargeBytes ? allocate_large(bytes) : allocate_small(bytes);
  require(
      block != nullptr, ErrorCode::kOutOfMemory, "the system refused ", bytes,
      " bytes of host memory; end other programs, or raise the limit of this process (ulimit -v)");
  return block;
}

void HostMemoryPool::deallocate(void* address, std::size_t bytes) noexcept {
  if (address == nullptr) return;
  if (!kPooling) {
    std::free(address);
    return;
  }
  bytes = round_up(std::max<std::size_t>(bytes, 1), 64);
  const std::lock_guard lock(mutex_);
  if (bytes >= kLargeBytes) {
    const auto used = used_large_.find(address);
    free_large_.emplace(used->second, address);
    used_large_.erase(used);
  } else {
    free_small_.give_back(address, bytes);
  }
}

void* HostMemoryPool::allocate_large(std::size_t bytes) {
  const auto fit = free_large_.lower_bound(bytes);
  if (fit != free_large_.end() && fit->first <= bytes + bytes / 4) {
    void* const block = fit->second;
    used_large_.emplace(block, fit->first);
    free_large_.erase(fit);
    return block;
  }
  const std::size_t capacity = round_up(bytes, kPageBytes);
  void* block = map_pages(capacity);
  if (block == nullptr) {
    release_cached();
    block = map_pages(capacity);
  }
  if (block != nullptr) used_large_.emplace(block, capacity);
  return block;
}

void* HostMemoryPool::allocate_small(std::size_t bytes) {
  if (kPooling) {
    if (void* const block = free_small_.take(bytes); block != nullptr) return block;
  }
  return std::aligned_alloc(64, bytes);
}

void HostMemoryPool::release_cached() noexcept {
  for (const auto& [capacity, block] : free_large_) munmap(block, capacity);
  free_large_.clear();
  free_small_.clear([](void* block) { std::free(block); });
}

}  // namespace tessera
