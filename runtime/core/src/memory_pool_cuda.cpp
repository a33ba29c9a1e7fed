#include "memory_pool_cuda.h"

#include <algorithm>

#include "check_cuda.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t kAlignment = 512;
/// Small requests share a segment of this size; what is larger gets one of its own.
constexpr std::size_t kSegment = std::size_t{32} << 20;

std::size_t rounded(std::size_t bytes, std::size_t to = kAlignment) {
  return std::max((bytes + to - 1) / to * to, to);
}

}  // namespace

MemoryPool::~MemoryPool() {
  static_cast<void>(cudaSetDevice(ordinal_));
  for (void* segment : segments_) {
    if (source_.take) {
      source_.give_back(segment);
    } else {
      static_cast<void>(cudaFree(segment));
    }
  }
}

void* MemoryPool::allocate(std::size_t bytes) {
  const std::size_t wanted = rounded(bytes);
  const std::lock_guard lock(mutex_);
  const auto fitting = free_.lower_bound({wanted, 0});
  const auto block = fitting != free_.end() ? blocks_.find(fitting->second) : grow(wanted);
  set_free(block, false);
  if (block->second.bytes > wanted) {
    const auto rest =
        blocks_.emplace(block->first + wanted, Block{.bytes = block->second.bytes - wanted}).first;
    block->second.bytes = wanted;
    set_free(rest, true);
  }
  return reinterpret_cast<void*>(block->first);
}

void MemoryPool::deallocate(void* address) noexcept {
  const std::lock_guard lock(mutex_);
  auto block = blocks_.find(reinterpret_cast<Address>(address));
  if (block == blocks_.end()) return;
  set_free(block, true);
  merge_with_next(block);
  if (block != blocks_.begin() && std::prev(block)->second.free) merge_with_next(std::prev(block));
}

std::int64_t MemoryPool::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

std::int64_t MemoryPool::growths() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(segments_.size());
}

void* MemoryPool::take(std::size_t bytes) const {
  if (source_.take) return source_.take(bytes);
  void* segment = nullptr;
  const cudaError_t status = cudaMalloc(&segment, bytes);
  if (status != cudaErrorMemoryAllocation) {
    check(status, "cudaMalloc");
    return segment;
  }
  static_cast<void>(cudaGetLastError());
  return nullptr;
}

MemoryPool::Blocks::iterator MemoryPool::grow(std::size_t bytes) {
  const std::size_t least = rounded(bytes, source_.granularity);
  TESSERA_CUDA_CHECK(cudaSetDevice(ordinal_));
  std::size_t taken = std::max(least, kSegment);
  void* segment = take(taken);
  if (segment == nullptr && taken > least) {
    taken = least;  // the last of it, then
    segment = take(taken);
  }
  if (segment == nullptr) {
    std::size_t left = 0, total = 0;
    TESSERA_CUDA_CHECK(cudaMemGetInfo(&left, &total));
    const auto others = static_cast<std::int64_t>(total - left) - reserved_;
    fail(ErrorCode::kOutOfMemory, "GPU ", ordinal_, " has ", left, " of its ", total,
         " bytes left, and ", bytes, " are needed in one piece (this rank holds ", reserved_,
         ", other ranks, programs and libraries ", others, ")");
  }
  segments_.push_back(segment);
  reserved_ += static_cast<std::int64_t>(taken);
  const auto block = blocks_
                         .emplace(reinterpret_cast<Address>(segment),
                                  Block{.bytes = taken, .first_of_segment = true})
                         .first;
  set_free(block, true);
  return block;
}

void MemoryPool::set_free(Blocks::iterator block, bool free) {
  if (block->second.free == free) return;
  block->second.free = free;
  if (free) {
    free_.emplace(block->second.bytes, block->first);
  } else {
    free_.erase({block->second.bytes, block->first});
  }
}

/// `block` is free; takes in the one behind it, if that is free and of the same segment.
void MemoryPool::merge_with_next(Blocks::iterator block) {
  const auto next = std::next(block);
  if (next == blocks_.end() || !next->second.free || next->second.first_of_segment) return;
  set_free(next, false);
  set_free(block, false);
  block->second.bytes += next->second.bytes;
  blocks_.erase(next);
  set_free(block, true);
}

}  // namespace tessera::cuda
