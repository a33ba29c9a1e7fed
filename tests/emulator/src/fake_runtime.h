#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fake_cuda.h"
#include "fake_graph.h"
#include "fake_stream.h"
#include "kernel_turns.h"

// The state of the emulated driver. Host threads share its lock; the workers of streams never take
// it.

struct CUevent_st {
  unsigned flags = 0;
  tessera::emulator::Moment* moment = nullptr;  ///< of the latest recording
  /// The capture that it was last recorded in, if that is what was last done with it, and where.
  std::weak_ptr<tessera::emulator::Capture> capture = {};
  bool captured = false;
  tessera::emulator::Frontier frontier = {};
};

namespace tessera::emulator {

enum class MemoryKind { kDevice, kPinned, kRegistered, kManaged, kVirtual };

struct Allocation {
  // Of memory that the runtime gave out.
  std::size_t bytes;
  MemoryKind kind;
  int device;
};

struct Runtime {
  std::mutex mutex;
  fake_cuda::Settings settings;
  fake_cuda::Counters counters;

  struct Failure {
    int calls_left;
    cudaError_t error;
    fake_cuda::Repeat repeat;
  };
  std::map<std::string, Failure, std::less<>> failures;
  int kernels_to_illegal_access = 0;  ///< 0: none is planted

  std::map<std::uintptr_t, Allocation> allocations;
  std::vector<std::size_t> used_bytes;  ///< per device
  std::set<cudaStream_t> streams;
  std::map<int, cudaStream_t> default_streams;
  std::map<const void*, std::size_t> shared_limits;           ///< of kernels, where it was raised
  std::map<cudaStream_t, std::shared_ptr<Capture>> captures;  ///< by each stream that takes part
  std::set<cudaEvent_t> events;
  std::set<std::pair<int, int>> peers;  ///< (device, peer) whose access was enabled
  std::uint32_t streams_made = 0;
  std::map<int, KernelTurns> turns;  ///< by device

  cudaStream_t new_stream(int device, int priority);
  /// The current device's default stream for null. Null if there is no such stream.
  cudaStream_t find(cudaStream_t stream);
  std::size_t& used(int device);
};

Runtime& runtime();
int current_device();

/// Makes `error` what cudaGetLastError returns, unless it is cudaSuccess.
cudaError_t report(cudaError_t error);

/// Every call begins with this, under the lock: cudaSuccess, or what makes it fail.
cudaError_t begin_call(std::string_view function);

/// What every call of this process returns once it has lost its GPUs; cudaSuccess until then.
cudaError_t sticky_error();

/// What a call that has waited returns. Throws what a fault says, if it is one that has not been
/// thrown; from a call made while another exception is on its way, an error is returned instead.
cudaError_t throw_fault(Fault* fault);

/// Puts work on a stream, or into the graph that it captures. Under the lock.
cudaError_t submit(cudaStream_t stream, GraphNode node);

/// Puts the work of a node on a stream, with the priority that it has there. Under the lock.
void enqueue(cudaStream_t stream, const GraphNode& node, int priority);

/// Forgets what the event has recorded.
void forget_recording(CUevent_st& event);

}  // namespace tessera::emulator
