#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <vector>

#include "fake_runtime.h"
#include "filled_pages.h"
#include "sanitizers.h"

// Memory of the emulated GPU, which is the host's. New memory holds 0xff bytes (NaN), and so does
// what has been freed: whoever reads either sees it. Freeing does not wait for work that is under
// way, as CUDA in fact does but nowhere promises.

using namespace tessera::emulator;

namespace {

constexpr std::size_t kAlignment = 512;

/// From here on in pages that take nothing until they are written. AddressSanitizer knows the
/// bounds of what malloc gives: of buffers, not of the segments that hold them.
constexpr std::size_t kManyBytes = std::size_t{kAddressSanitizer ? 8 : 1} << 20;

void* filled_memory(std::size_t bytes, std::size_t alignment) {
  if (bytes >= kManyBytes) return take_filled_pages(bytes, alignment);
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  return std::memset(memory, kFill, bytes);
}

void free_filled_memory(void* memory, std::size_t bytes) {
  if (bytes >= kManyBytes) {
    give_filled_pages_back(memory, bytes);
  } else {
    std::memset(memory, kFill, bytes);
    std::free(memory);
  }
}

/// Under the lock.
cudaError_t allocate(const char* function, void** address, std::size_t bytes, MemoryKind kind) {
  Runtime& state = runtime();
  if (const cudaError_t error = begin_call(function)) return error;
  if (const cudaError_t error = forbid_while_capturing()) return error;
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  const bool counted = kind != MemoryKind::kPinned;
  std::size_t& used = state.used(current_device());
  if (counted && bytes > state.settings.memory_bytes - used) return cudaErrorMemoryAllocation;
  const std::size_t alignment = kind == MemoryKind::kVirtual ? fake_cuda::kVirtualPage : kAlignment;
  *address = filled_memory(bytes, alignment);
  if (*address == nullptr) return cudaErrorMemoryAllocation;
  state.allocations[reinterpret_cast<std::uintptr_t>(*address)] = {
      .bytes = bytes, .kind = kind, .device = current_device()};
  ++state.counters.live_allocations;
  if (counted) {
    used += bytes;
    ++state.counters.allocations;
    state.counters.live_bytes += static_cast<std::int64_t>(bytes);
  }
  return cudaSuccess;
}

cudaError_t deallocate(const char* function, void* address, std::set<MemoryKind> kinds) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call(function)) return report(error);
  if (const cudaError_t error = forbid_while_capturing()) return report(error);
  if (address == nullptr) return cudaSuccess;
  const auto found = state.allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == state.allocations.end() || !kinds.contains(found->second.kind)) {
    return report(cudaErrorInvalidValue);
  }
  const Allocation allocation = found->second;
  state.allocations.erase(found);
  --state.counters.live_allocations;
  if (allocation.kind != MemoryKind::kPinned) {
    state.used(allocation.device) -= allocation.bytes;
    state.counters.live_bytes -= static_cast<std::int64_t>(allocation.bytes);
  }
  free_filled_memory(address, allocation.bytes);
  return cudaSuccess;
}

enum class Place { kPageable, kPinned, kDevice, kManaged, kOutside };

/// Where some bytes lie: kOutside if they begin in an allocation and end outside of it.
Place place_of(const void* memory, std::size_t bytes) {
  const auto& allocations = runtime().allocations;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return Place::kPageable;
  const auto& [begin, allocation] = *std::prev(next);
  if (address >= begin + allocation.bytes) return Place::kPageable;
  if (address + bytes > begin + allocation.bytes) return Place::kOutside;
  switch (allocation.kind) {
    case MemoryKind::kDevice:
    case MemoryKind::kVirtual:
      return Place::kDevice;
    case MemoryKind::kPinned:
    case MemoryKind::kRegistered:
      return Place::kPinned;
    case MemoryKind::kManaged:
      return Place::kManaged;
  }
  return Place::kOutside;
}

bool on_host(Place place) { return place == Place::kPageable || place == Place::kPinned; }

bool kind_fits(cudaMemcpyKind kind, Place to, Place from) {
  switch (kind) {
    case cudaMemcpyDefault:
      return true;
    case cudaMemcpyHostToHost:
      return to != Place::kDevice && from != Place::kDevice;
    case cudaMemcpyHostToDevice:
      return !on_host(to) && from != Place::kDevice;
    case cudaMemcpyDeviceToHost:
      return to != Place::kDevice && !on_host(from);
    case cudaMemcpyDeviceToDevice:
      return !on_host(to) && !on_host(from);
  }
  return false;
}

/// Enqueues a copy. `finish` is what the host is to wait for, if it is to.
cudaError_t copy(const char* function, void* to, const void* from, std::size_t bytes,
                 cudaMemcpyKind kind, cudaStream_t stream, bool always_wait) {
  Runtime& state = runtime();
  Moment* finish = nullptr;
  {
    const std::lock_guard lock(state.mutex);
    if (const cudaError_t error = begin_call(function)) return report(error);
    stream = state.find(stream);
    if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
    if (always_wait) {
      if (const cudaError_t error = forbid_while_capturing()) return report(error);
    }
    if (bytes == 0) return cudaSuccess;
    const Place target = place_of(to, bytes);
    const Place source = place_of(from, bytes);
    if (target == Place::kOutside || source == Place::kOutside || to == nullptr ||
        from == nullptr || !kind_fits(kind, target, source)) {
      return report(cudaErrorInvalidValue);
    }
    const bool pageable = target == Place::kPageable || source == Place::kPageable;
    if (const auto capture = capture_of(stream); capture && pageable) {
      return report(invalidate(*capture, cudaErrorStreamCaptureUnsupported));
    }
    std::function<void()> action = [=] { std::memcpy(to, from, bytes); };
    if (source == Place::kPageable) {  // read before the call returns, as into a staging buffer
      const auto* first = static_cast<const unsigned char*>(from);
      action = [to, staged = std::vector<unsigned char>(first, first + bytes)] {
        std::memcpy(to, staged.data(), staged.size());
      };
    }
    const cudaError_t error =
        submit(stream, {.kind = GraphNode::Kind::kCopy, .action = std::move(action)});
    if (error != cudaSuccess) return report(error);
    if (pageable || always_wait) ++state.counters.host_waits;
    if (target == Place::kPageable || always_wait) finish = stream->enqueue_moment();
  }
  if (finish == nullptr) return cudaSuccess;
  finish->wait();
  Fault* fault = finish->fault();
  finish->release();
  return throw_fault(fault);
}

cudaError_t fill(const char* function, void* to, int value, std::size_t bytes,
                 cudaStream_t stream) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_call(function)) return report(error);
  if (bytes == 0) return cudaSuccess;
  const Place place = place_of(to, bytes);
  if (place == Place::kOutside || place == Place::kPageable) return report(cudaErrorInvalidValue);
  return report(submit(
      stream, {.kind = GraphNode::Kind::kFill, .action = [=] { std::memset(to, value, bytes); }}));
}

}  // namespace

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  return report(allocate("cudaMalloc", address, bytes, MemoryKind::kDevice));
}
cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  return report(allocate("cudaMallocHost", address, bytes, MemoryKind::kPinned));
}
cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned flags) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaHostRegister")) return report(error);
  if (const cudaError_t error = forbid_while_capturing()) return report(error);
  if (address == nullptr || bytes == 0 || flags > cudaHostRegisterPortable) {
    return report(cudaErrorInvalidValue);
  }
  state.allocations[reinterpret_cast<std::uintptr_t>(address)] = {
      .bytes = bytes, .kind = MemoryKind::kRegistered, .device = current_device()};
  ++state.counters.live_allocations;
  ++state.counters.registrations;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaHostUnregister")) return report(error);
  const auto found = state.allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == state.allocations.end() || found->second.kind != MemoryKind::kRegistered) {
    return report(cudaErrorInvalidValue);
  }
  state.allocations.erase(found);
  --state.counters.live_allocations;
  return cudaSuccess;
}
cudaError_t cudaMallocManaged(void** address, std::size_t bytes, unsigned flags) {
  const std::lock_guard lock(runtime().mutex);
  if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) {
    return report(cudaErrorInvalidValue);
  }
  return report(allocate("cudaMallocManaged", address, bytes, MemoryKind::kManaged));
}
cudaError_t cudaFree(void* address) {
  return deallocate("cudaFree", address, {MemoryKind::kDevice, MemoryKind::kManaged});
}
cudaError_t cudaFreeHost(void* address) {
  return deallocate("cudaFreeHost", address, {MemoryKind::kPinned});
}

cudaError_t fake_cuda::allocate_virtual(void** address, std::size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  const std::size_t pages = (bytes + kVirtualPage - 1) / kVirtualPage;
  return report(allocate("cuMemCreate", address, pages * kVirtualPage, MemoryKind::kVirtual));
}
cudaError_t fake_cuda::free_virtual(void* address) {
  return deallocate("cuMemRelease", address, {MemoryKind::kVirtual});
}
bool fake_cuda::is_virtual(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  const auto& allocations = runtime().allocations;
  const auto next = allocations.upper_bound(reinterpret_cast<std::uintptr_t>(memory));
  return place_of(memory, bytes) == Place::kDevice &&
         std::prev(next)->second.kind == MemoryKind::kVirtual;
}

cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* total) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaMemGetInfo")) return report(error);
  *total = state.settings.memory_bytes;
  *left = *total - state.used(current_device());
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return copy("cudaMemcpy", to, from, bytes, kind, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy("cudaMemcpyAsync", to, from, bytes, kind, stream, false);
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return fill("cudaMemset", to, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return fill("cudaMemsetAsync", to, value, bytes, stream);
}
