#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "fake_stream.h"

namespace tessera::emulator {

/// One operation of a stream.
struct GraphNode {
  enum class Kind { kKernel, kCopy, kFill, kHostFunction, kRecordEvent, kWaitEvent };
  Kind kind;
  std::function<void()> action;  ///< null for events
  cudaEvent_t event = nullptr;   ///< null for others
  int priority = 0;              ///< of the stream that captured it
  /// Which stream of the capture it was enqueued on, counted as they joined; the origin is 0.
  std::size_t branch = 0;
  /// The nodes, by number, that it comes after.
  std::set<std::size_t> after = {};
};

/// The nodes, by number, that what is captured next comes after.
using Frontier = std::set<std::size_t>;

/// A capture under way: what has been enqueued, instead of run.
struct Capture {
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool invalidated = false;
  std::vector<GraphNode> nodes = {};
  struct Member {
    std::size_t branch;
    Frontier frontier;
  };
  std::map<cudaStream_t, Member> members = {};  ///< the streams that take part
  std::size_t branches = 0;                     ///< members that there have been

  void add(cudaStream_t stream, GraphNode node);
  /// Whether all nodes come before what would follow on the origin.
  bool joined() const;
};

/// The capture that a stream takes part in; null if none. Under the runtime's lock.
std::shared_ptr<Capture> capture_of(cudaStream_t stream);
/// For calls that a capture forbids to its thread (or, in the global mode, to all): invalidates the
/// capture and returns cudaErrorStreamCaptureUnsupported.
cudaError_t forbid_while_capturing();
/// Makes a capture useless, and returns `error`.
cudaError_t invalidate(Capture& capture, cudaError_t error);

}  // namespace tessera::emulator
