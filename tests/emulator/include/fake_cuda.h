#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

// How tests steer the emulated GPU and look into it.
namespace fake_cuda {

struct Settings {
  int devices = 1;
  int driver_version = 13000;                        ///< 0: no driver is installed
  std::size_t memory_bytes = std::size_t{64} << 30;  ///< of each device
  int major = 9, minor = 0;                          ///< compute capability
  int block_shared_bytes = 227 << 10;                ///< the most that a block can ask for
  /// Each task of a stream, on its own worker thread, begins after a random delay of up to this.
  unsigned max_delay_us = 0;
  unsigned seed = 1;
  /// Of streams with a priority alone.
  bool delays_urgent_only = false;
  /// Kernels of a device take turns. Of those whose turn has come, the one of the greatest priority
  /// runs next, and of equal ones that of the oldest stream. False: they run side by side, and
  /// priorities are without effect.
  bool one_kernel_at_a_time = false;
  /// False: kernels and host functions are counted and do nothing, so that a test of memory or
  /// order may be as large as a real run. What copies bring back means nothing.
  bool computes = true;
};

/// Not while streams have work.
void configure(const Settings& settings);

/// Since the program began, for all devices.
struct Counters {
  std::int64_t allocations = 0;       ///< of device and managed memory
  std::int64_t live_allocations = 0;  ///< those not freed yet, and pinned memory
  std::int64_t live_bytes = 0;        ///< of device and managed memory
  std::int64_t registrations = 0;     ///< of host memory, by cudaHostRegister
  std::int64_t launches = 0;          ///< of kernels, those of graphs included
  std::int64_t captures = 0;          ///< begun
  std::int64_t graph_launches = 0;
  std::int64_t dynamic_shared_bytes = 0;  ///< that launches have asked for, for each block
  std::int64_t streams = 0;               ///< that were asked for
  std::int64_t urgent_streams = 0;        ///< of them, with the greatest priority
  /// Kernels that could run now, but for Settings::one_kernel_at_a_time.
  std::int64_t waiting_kernels = 0;
  /// Work that a thread has added to the capture of another. CUDA captures it, as all that is put
  /// on a capturing stream; but nothing but its own thread's waiting makes it come in time.
  std::int64_t foreign_captures = 0;
  /// Calls that made the host wait: synchronisations, and copies to or from pageable memory.
  std::int64_t host_waits = 0;
  /// Faults of kernels that no call has thrown so far.
  std::int64_t unreported_faults = 0;
};
Counters counters();

enum class Repeat { kOnce, kFromThenOn };
/// Makes the `nth` call from now (1: the next) of a function, such as "cudaMalloc", return `error`
/// without doing anything. Kernel launches are "cudaLaunchKernel".
void fail_call(const char* function, int nth, cudaError_t error, Repeat repeat = Repeat::kOnce);
/// Forgets what fail_call was told.
void stop_failing();

/// The `nth` kernel from now, those of graphs included, accesses memory that it must not. When it
/// runs, the process loses its GPUs, as with CUDA: work that is enqueued does nothing, and every
/// call fails with cudaErrorIllegalAddress until the process ends.
void plant_illegal_access(int nth);
/// Whether it has.
bool is_lost();

/// Memory as cuMemCreate and cuMemMap give it: whole pages, which GPUs can share. cudaFree refuses
/// it.
inline constexpr std::size_t kVirtualPage = std::size_t{2} << 20;
cudaError_t allocate_virtual(void** address, std::size_t bytes);
cudaError_t free_virtual(void* address);
bool is_virtual(const void* memory, std::size_t bytes);

/// Called by a stream's work: later events of the stream say that this much more time has passed.
void pass_time(std::chrono::microseconds time);

/// As cudaLaunchHostFunc. In a capture, `function` lives as long as a graph that holds it.
cudaError_t launch_host(cudaStream_t stream, std::function<void()> function);

}  // namespace fake_cuda
