#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

enum class DeviceKind { kCpu, kCuda, kSim };

std::string_view to_string(DeviceKind kind);

/// The kind of a submitted piece of work, for traces and for the cost model of the sim device.
struct Work {
  /// Must outlive the work, which profilers show by it; of an action: describe().
  std::string_view name;
  int action = -1;        ///< index in the Schedule, -1 for work outside of one
  double seconds = 0.0;   ///< what the sim device charges; other devices ignore it
  std::int64_t step = 0;  ///< the run of the Schedule that the action belongs to
  int program = 0;        ///< which Schedule, as the Executor counts
  /// Work without an action that follows on the stream belongs to this one.
  bool goes_on = false;
};

/// A point in a stream's order. Copies share it. A default-constructed Event is already past.
class Event {
 public:
  class State;
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }
  /// Blocks the host until it is past. Of work that failed it says nothing: see
  /// Stream::failed.
  void synchronize() const;

 private:
  std::shared_ptr<State> state_;
};

/// The base of a backend's events.
class Event::State {
 public:
  virtual ~State() = default;
  virtual void synchronize() = 0;
};

inline void Event::synchronize() const {
  if (state_ != nullptr) state_->synchronize();
}

/// A queue of work that runs in order. Streams of one device run concurrently with each other.
///
/// A task that throws stops its stream: later tasks are dropped, events recorded on it complete (so
/// that no waiter hangs), and `synchronize` rethrows the first exception.
class Stream {
 public:
  virtual ~Stream() = default;

  /// Enqueues `task`. On the CPU it runs on the stream's worker thread; on a CUDA device it runs at
  /// once on the calling thread and launches its kernels into this stream; on the sim device it
  /// runs at once and advances the stream's clock by `work.seconds`. On the CPU and the sim device
  /// throws Error{kInvalidArgument} if a task of this very stream calls it: the new task would run
  /// behind those that the host has enqueued meanwhile. On the CPU the same holds for what follows.
  virtual void submit(const Work& work, std::function<void()> task) = 0;

  /// Enqueues a task of the host, which touches no device and launches nothing: it runs on a thread
  /// of the host in stream order, also each time that a captured stream is replayed. A throw stops
  /// the stream, as that of any task.
  virtual void submit_on_host(const Work& work, std::function<void()> task) {
    submit(work, std::move(task));
  }

  /// An event that completes when everything submitted so far has run.
  virtual Event record() = 0;

  /// Later tasks of this stream run after `event`. Does not block the host.
  virtual void wait(const Event& event) = 0;

  /// Copies `bytes` in stream order, within the device or between it and the host, whichever the
  /// addresses are. Neither may be freed, nor the source changed, before the copy has run. Host
  /// memory should come from Device::allocate_host: a copy of other memory may block the host.
  virtual void copy(void* destination, const void* source, std::size_t bytes) = 0;

  /// Blocks the host until all submitted work has run; rethrows the first exception of a task.
  virtual void synchronize() = 0;

  /// True if a task that has run so far threw, or work that it enqueued is known to have failed.
  virtual bool failed() const = 0;
};

/// Where several streams of a CUDA device have work, that of a higher priority begins first. On the
/// CPU the thread of an urgent stream takes the core of one that is not when it wakes, if Linux
/// lets it (6.12 and later).
enum class StreamPriority : std::uint8_t { kBackground, kNormal, kUrgent };

struct StreamOptions {
  std::string name{};
  int threads = 1;  ///< threads that the kernels of this stream may use (CPU device)
  StreamPriority priority = StreamPriority::kNormal;
  /// Called once, on the failing thread, when a task of this stream throws; must not throw.
  std::function<void(std::string_view what)> on_error{};
  /// Called on the executing thread before each task. Tests inject delays here; a throw fails the
  /// task.
  std::function<void()> before_task{};
  /// Called on the executing thread before each task, and before before_task, with seconds of the
  /// steady clock; not on the sim device, nor for what is captured in a CUDA graph. Must not throw.
  std::function<void(const Work& work, double seconds)> on_begin{};
  /// Called on the executing thread after each task that did not throw, with when it ran: seconds
  /// of the steady clock, or of the stream's virtual clock on the sim device. Must not throw.
  std::function<void(const Work& work, double begin_seconds, double end_seconds)> on_span{};
};

/// Where a rank computes: memory and streams. Its kernels are found by `kernels_for(device)`.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;

  /// Uninitialised memory aligned to at least 64 bytes. Throws Error{kOutOfMemory}.
  /// The sim device returns an address that must not be read.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* address, std::size_t bytes) noexcept = 0;

  /// True if the host reads and writes the device's memory as its own.
  virtual bool host_accessible() const = 0;
  /// Host memory that Stream::copy reads and writes without blocking the host. Never null.
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void deallocate_host(void* address, std::size_t bytes) noexcept = 0;

  virtual std::unique_ptr<Stream> create_stream(StreamOptions options) = 0;
};

}  // namespace tessera
