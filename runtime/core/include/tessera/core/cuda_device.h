#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/device.h"
#include "tessera/core/host_work.h"

struct CUstream_st;  // *CUstream_st is cudaStream_t: no CUDA header is needed to include this one

namespace tessera {

struct KernelTable;

/// One GPU as the CUDA runtime describes it.
struct CudaGpu {
  int ordinal = 0;
  std::string name{};
  std::string uuid{};        ///< "GPU-…", as nvidia-smi prints it
  std::string pci{};         ///< "0000:1b:00.0"
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
  std::vector<int> peers{};  ///< ordinals whose memory it can reach directly
};

/// The CUDA support of this machine and this build. `problem` says in one sentence with its remedy
/// why no GPU can be used (no module built, no driver, driver too old, no device); empty if one
/// can.
struct CudaStatus {
  std::string problem{};
  std::string module{};          ///< path of the loaded backend, empty if none
  std::string driver_version{};  ///< the newest CUDA that the driver runs, "13.0"; empty: no driver
  std::string runtime_version{};                              ///< what the backend was built with
  std::string blas_version{}, dnn_version{}, nccl_version{};  ///< empty: not there
  std::vector<CudaGpu> gpus{};
  bool usable() const { return problem.empty(); }
};

/// Never throws for what is merely absent.
CudaStatus cuda_status();

/// Where the segments come from that a device's memory is cut from.
struct CudaSegments {
  /// Memory of the current device, whole pages of 2 MiB; null if there is not as much left. Empty:
  /// cudaMalloc.
  std::function<void*(std::size_t bytes)> take{};
  std::function<void(void* address)> give_back{};
};

struct CudaDeviceOptions {
  int ordinal = 0;
  /// Ranges with the schedule's names for Nsight Systems.
  bool nvtx = true;
  CudaSegments segments{};
  /// Host memory that the first Device::allocate_host takes and pins for all.
  std::int64_t pinned_bytes = 0;
  HostWork* host_work = nullptr;  ///< counts the taking of host memory; must outlive the device
};

/// Captured work, which runs again with one call: with the same addresses, and what they hold then.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
};

/// Where work that a stream has already enqueued says that it failed, from any thread. A stream
/// that finds something here is failed: it drops later tasks, and `synchronize` rethrows what it
/// found.
class StreamFailure {
 public:
  /// The first one counts.
  void set(std::exception_ptr failure) noexcept {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  std::exception_ptr get() const noexcept {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr failure_;  // guarded by mutex_
};

/// A queue of a CUDA device. Driven by one host thread.
class CudaStream : public Stream {
 public:
  /// From here on, work is recorded instead of run: of this stream, and of others of its device
  /// once they wait for an event of it. The host must not wait for any of them, nor may memory be
  /// taken from the driver, until end_capture. Throws Error{kInvalidArgument} if it is capturing
  /// already.
  virtual void begin_capture() = 0;
  /// This stream must have waited for all others that joined. If `previous` differs in values only
  /// it is updated and returned, which is cheaper than a new one. Throws Error{kInvalidArgument}
  /// that says what was not allowed.
  virtual std::unique_ptr<CudaGraph> end_capture(std::unique_ptr<CudaGraph> previous) = 0;
  virtual void launch(CudaGraph& graph) = 0;

  // Order between graphs. An event that record() gives in a capture means nothing outside of that
  // graph.
  /// An event for record_again(); past until then.
  virtual Event make_event() = 0;
  /// Records an event of make_event() anew. In a capture, each replay does; and of wait(event) in a
  /// capture, each replay waits for what was recorded last when it was launched.
  virtual void record_again(const Event& event) = 0;

  virtual CUstream_st* handle() const = 0;
  /// The kernels that may be launched into it.
  virtual const KernelTable& kernels() const = 0;
  virtual int ordinal() const = 0;
  /// Scratch of the library calls of this stream, which run one after another: at least `bytes`,
  /// aligned to 256, allocated by the first call that asks for so much; contents are lost between
  /// calls. Cannot grow while a graph is captured (Error{kInvalidArgument}).
  virtual void* scratch(std::size_t bytes) = 0;
  /// Memory of this device that `scratch` hands out whenever it suffices: so that it is its owner's
  /// to account for. Aligned to 256; must outlive the stream's work and its graphs.
  virtual void lend_scratch(void* memory, std::size_t bytes) = 0;
  /// The state that a library keeps per stream (handles, plans), made by the first call that needs
  /// it and destroyed with the stream. One slot per kind of library.
  enum class Library : std::uint8_t { kBlas, kAttention, kCollectives };
  virtual std::shared_ptr<void>& library(Library which) = 0;
  /// Submits `task` as soon as anything else is to enter this stream, or the host is to wait for it
  /// (submit, record, wait, copy, synchronize, the destructor). For work that cannot be enqueued
  /// before another rank has issued its part: the host is free to issue to other streams meanwhile.
  virtual void defer(const Work& work, std::function<void()> task) {
    submit(work, std::move(task));
  }
  /// A place in the stream's order. Once the stream is synchronised, the result gives the second of
  /// the steady clock at which it was passed; to be called once. Not while a graph is captured.
  virtual std::function<double()> mark_time() = 0;
  /// The status that enqueued work reports to; may outlive the stream. Never null.
  virtual const std::shared_ptr<StreamFailure>& failure() = 0;
};

/// A GPU. Memory comes from segments that grow while a first step runs and are reused ever after:
/// a freed block may be handed out at once, to be used by work submitted later to the *same*
/// stream. So only one stream may use memory that is freed before the device is synchronised (the
/// compute lane's activations).
class CudaDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  bool host_accessible() const override { return false; }
  virtual const KernelTable& kernels() const = 0;
  virtual int ordinal() const = 0;
  /// Bytes taken from the driver, of which `allocate` has handed out a part.
  virtual std::int64_t reserved_bytes() const = 0;
  /// How often the host waited for this device since it was made: synchronisations of streams and
  /// allocations from the driver. A step has one for each lane, at its end.
  virtual std::int64_t host_waits() const = 0;
};

/// Throws Error{kUnavailable} with CudaStatus::problem, or if there is no such ordinal.
std::unique_ptr<CudaDevice> make_cuda_device(CudaDeviceOptions options = {});

/// A function that the CUDA backend exports: of the program itself if it was linked in (as tests
/// do), else of libtessera_cuda.so, loaded on first use from $TESSERA_CUDA_MODULE or from beside
/// the program or library. Throws Error{kUnavailable} that names the places searched.
void* cuda_symbol(const char* name);

}  // namespace tessera
