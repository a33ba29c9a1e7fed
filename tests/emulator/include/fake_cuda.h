#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// How tests steer the emulated GPU and look into it.
namespace fake_cuda {

struct Settings {
  int devices = 1;
  int driver_version = 13000;                        ///< 0: no driver is installed
  std::size_t memory_bytes = std::size_t{64} << 30;  ///< of each device
  int major = 9, minor = 0;                          ///< compute capability
  /// Each task of a stream, on its own worker thread, begins after a random delay of up to this.
  unsigned max_delay_us = 0;
  unsigned seed = 1;
};

/// Not while streams have work.
void configure(const Settings& settings);

/// Since the program began, for all devices.
struct Counters {
  std::int64_t allocations = 0;       ///< of device and managed memory
  std::int64_t live_allocations = 0;  ///< those not freed yet, and pinned memory
  std::int64_t live_bytes = 0;        ///< of device and managed memory
  std::int64_t launches = 0;          ///< of kernels, those of graphs included
  std::int64_t graph_launches = 0;
  std::int64_t streams = 0;         ///< that were asked for
  std::int64_t urgent_streams = 0;  ///< of them, with the greatest priority
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

}  // namespace fake_cuda
