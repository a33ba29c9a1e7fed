#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

// What emulated device code calls. All that touches another thread's data is behind these
// functions, in files that ThreadSanitizer does not see, so that it sees the kernel's own accesses
// only.

namespace tessera::emulator {

using Location = std::source_location;

/// Who the running CUDA thread is.
struct Identity {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
  unsigned lane, warp;
};

/// Null outside kernels. Fibers stay on the OS thread that they were made on.
extern constinit thread_local const Identity* current_identity;

#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread"), noinline)) inline const Identity& current() {
  return *current_identity;
}
#else
inline const Identity& current() { return *current_identity; }
#endif

/// Ends the kernel: the next call that waits for its stream throws, with `what` and the place.
[[noreturn]] void fault(const char* what, const Location& where);

enum class Vote { kNone, kAny, kAll, kCount };
/// __syncthreads and its relatives; returns the vote's result.
int block_barrier(Vote vote, bool predicate, const Location& where);
void warp_barrier(std::uint32_t mask, const Location& where);
/// Replaces `value` (at most 16 bytes) by that of lane `source`; all ones if it takes no part.
void shuffle(std::uint32_t mask, void* value, std::size_t bytes, unsigned source,
             const Location& where);
std::uint32_t ballot(std::uint32_t mask, bool predicate, const Location& where);

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment,
                    const Location& where = Location::current());
void* dynamic_shared(const Location& where);

void async_copy16(void* shared, const void* global, const Location& where);
void async_copy_commit();
void async_copy_wait(int pending);

void load_matrices(std::uint32_t (&words)[4], const void* row, bool transposed,
                   const Location& where);
/// Elements of a and b are fp16 or, if not, bf16.
void multiply_matrices(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                       bool fp16, const Location& where);

inline void check_aligned16(const void* address, const Location& where) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    fault("a 16-byte access to an address that is not 16-byte aligned", where);
  }
}

struct Launch {
  const void* kernel = nullptr;
  dim3 grid, block;
  std::size_t dynamic_shared_bytes = 0;
  std::function<void()> body;  ///< one CUDA thread
};
/// Checks a launch as the driver does, and puts it on the stream.
cudaError_t enqueue(Launch launch, cudaStream_t stream);

}  // namespace tessera::emulator
