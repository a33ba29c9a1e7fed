#include "nccl/nccl_memory_cuda.h"

#include <iterator>

#include "cuda_check.h"
#include "nccl/nccl_library_cuda.h"
#include "tessera/core/error.h"

namespace tessera::cuda {
namespace {

/// The page of device memory that GPUs share. ncclMemAlloc rounds up to it.
constexpr std::size_t kPage = std::size_t{2} << 20;

}  // namespace

NcclMemory& NcclMemory::of_process() {
  static NcclMemory memory;
  return memory;
}

CudaSegments NcclMemory::segments(int gpu) {
  if (nccl().mem_alloc == nullptr || nccl().mem_free == nullptr) return {};
  check_cuda(cudaSetDevice(gpu), "cudaSetDevice");
  // NCCL has one error for all that CUDA refuses. If this much cannot be had, it is not for want of
  // memory.
  void* page = nullptr;
  const ncclResult_t result = nccl().mem_alloc(&page, kPage);
  {
    const std::lock_guard lock(mutex_);
    refusal_ = result == ncclSuccess ? "" : nccl().get_error_string(result);
  }
  if (result != ncclSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  static_cast<void>(nccl().mem_free(page));
  return {.take = [this](std::size_t bytes) { return take(bytes); },
          .give_back = [this](void* address) { give_back(address); }};
}

void* NcclMemory::take(std::size_t bytes) {
  void* address = nullptr;
  if (nccl().mem_alloc(&address, bytes) != ncclSuccess) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  segments_[reinterpret_cast<std::uintptr_t>(address)] = bytes;
  return address;
}

void NcclMemory::give_back(void* address) {
  {
    const std::lock_guard lock(mutex_);
    segments_.erase(reinterpret_cast<std::uintptr_t>(address));
  }
  static_cast<void>(nccl().mem_free(address));
}

NcclMemory::Range NcclMemory::range_of(void* address, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  const auto next = segments_.upper_bound(begin);
  if (next == segments_.begin()) return {.address = address, .bytes = bytes};
  const auto& [segment, length] = *std::prev(next);
  if (begin + bytes > segment + length) return {.address = address, .bytes = bytes};
  return {.address = reinterpret_cast<void*>(segment), .bytes = length, .of_nccl = true};
}

std::string NcclMemory::problem() const {
  const std::lock_guard lock(mutex_);
  if (refusal_.empty()) return "they are not in memory of ncclMemAlloc";
  return concat("ncclMemAlloc gave no memory ('", refusal_, "'; NCCL_DEBUG=WARN tells more)");
}

}  // namespace tessera::cuda
