#include "pinned_pool_cuda.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "check_cuda.h"
#include "tessera/core/error.h"
#include "tessera/core/touch_pages.h"

namespace tessera::cuda {
namespace {

void* address_of(const SegmentPool::Segment& segment) {
  return reinterpret_cast<void*>(segment.address);
}

}  // namespace

PinnedPool::~PinnedPool() {
  for (const SegmentPool::Segment& segment : segments_) {
    static_cast<void>(cudaHostUnregister(address_of(segment)));
    munmap(address_of(segment), segment.bytes);
  }
}

void* PinnedPool::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return reinterpret_cast<void*>(pool_.allocate(bytes));
}

void PinnedPool::deallocate(void* address) noexcept {
  const std::lock_guard lock(mutex_);
  pool_.deallocate(reinterpret_cast<SegmentPool::Address>(address));
}

SegmentPool::Segment PinnedPool::grow(std::size_t needed) {
  constexpr std::size_t kPage = SegmentPool::kPageBytes;
  std::size_t bytes = needed;
  if (segments_.empty()) {
    const auto arena = static_cast<std::size_t>(arena_bytes_);
    bytes = std::max(bytes, (arena + kPage - 1) / kPage * kPage);
  }
  segments_.reserve(segments_.size() + 1);
  void* const block =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto refuse = [bytes](int error) {
    fail(ErrorCode::kOutOfMemory, "the system refused ", bytes,
         " bytes of host memory: ", std::strerror(error),
         "; end other programs, or offload less (`offload_optimizer` host:0.5)");
  };
  if (block == MAP_FAILED) refuse(errno);
  madvise(block, bytes, MADV_HUGEPAGE);  // a hint
  try {
    if (!touch_pages(block, bytes, {.may_write = true, .work = work_})) refuse(ENOMEM);
  } catch (...) {
    munmap(block, bytes);
    throw;
  }
  const cudaError_t status = cudaHostRegister(block, bytes, cudaHostRegisterPortable);
  if (status != cudaSuccess) {
    munmap(block, bytes);
    require(status != cudaErrorMemoryAllocation, ErrorCode::kOutOfMemory, "CUDA could not pin ",
            bytes, " bytes of host memory; offload less (`offload_optimizer` host:0.5)");
    check(status, "cudaHostRegister");
  }
  segments_.push_back({.address = reinterpret_cast<SegmentPool::Address>(block), .bytes = bytes});
  return segments_.back();
}

}  // namespace tessera::cuda
