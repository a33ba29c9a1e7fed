#include "memory_pool_cuda.h"

#include "check_cuda.h"

namespace tessera::cuda {

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
  const std::lock_guard lock(mutex_);
  return reinterpret_cast<void*>(pool_.allocate(bytes));
}

void MemoryPool::deallocate(void* address) noexcept {
  const std::lock_guard lock(mutex_);
  pool_.deallocate(reinterpret_cast<SegmentPool::Address>(address));
}

std::int64_t MemoryPool::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  return pool_.reserved_bytes();
}

std::int64_t MemoryPool::growths() const {
  const std::lock_guard lock(mutex_);
  return pool_.segments();
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

SegmentPool::Segment MemoryPool::grow(std::size_t wanted, std::size_t needed) {
  TESSERA_CUDA_CHECK(cudaSetDevice(ordinal_));
  std::size_t taken = wanted;
  void* segment = take(taken);
  if (segment == nullptr && wanted > needed) {
    taken = needed;  // the last of it, then
    segment = take(taken);
  }
  if (segment == nullptr) {
    std::size_t left = 0, total = 0;
    TESSERA_CUDA_CHECK(cudaMemGetInfo(&left, &total));
    const std::int64_t held = pool_.reserved_bytes();
    const auto others = static_cast<std::int64_t>(total - left) - held;
    fail(ErrorCode::kOutOfMemory, "GPU ", ordinal_, " has ", left, " of its ", total,
         " bytes left, and ", needed, " are needed in one piece (this rank holds ", held,
         ", other ranks, programs and libraries ", others, ")");
  }
  segments_.push_back(segment);
  return {.address = reinterpret_cast<SegmentPool::Address>(segment), .bytes = taken};
}

}  // namespace tessera::cuda
