#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tessera/core/cuda_device.h"

namespace tessera::cuda {

/// CUDA events are kept and reused: a step makes and drops one for every dependency.
class EventPool {
 public:
  explicit EventPool(unsigned flags) : flags_(flags) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  cudaEvent_t take();
  void give_back(cudaEvent_t event) noexcept;

 private:
  const unsigned flags_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

/// State that the streams of a device share with it.
struct DeviceState {
  int ordinal = 0;
  bool nvtx = true;
  const KernelTable* kernels = nullptr;
  std::atomic<std::int64_t> host_waits{0};
  std::shared_ptr<EventPool> events = std::make_shared<EventPool>(cudaEventDisableTiming);
  std::shared_ptr<EventPool> timed_events = std::make_shared<EventPool>(cudaEventDefault);
  /// An event and the second of the steady clock at which it passed: traces are relative to it.
  cudaEvent_t epoch = nullptr;
  double epoch_seconds = 0.0;
};

/// Tasks run where they are submitted and launch into a CUDA stream.
class StreamCuda : public CudaStream {
 public:
  StreamCuda(DeviceState& device, StreamOptions options);
  ~StreamCuda() override;
  StreamCuda(const StreamCuda&) = delete;
  StreamCuda& operator=(const StreamCuda&) = delete;

  void submit(const Work& work, std::function<void()> task) override;
  void submit_on_host(const Work& work, std::function<void()> task) override;
  Event record() override;
  void wait(const Event& event) override;
  void copy(void* destination, const void* source, std::size_t bytes) override;
  void synchronize() override;
  bool failed() const override { return failure_->get() != nullptr; }

  void begin_capture() override;
  std::unique_ptr<CudaGraph> end_capture(std::unique_ptr<CudaGraph> previous) override;
  void launch(CudaGraph& graph) override;
  Event make_event() override;
  void record_again(const Event& event) override;

  CUstream_st* handle() const override { return stream_; }
  const KernelTable& kernels() const override { return *device_.kernels; }
  int ordinal() const override { return device_.ordinal; }
  void* scratch(std::size_t bytes) override;
  void lend_scratch(void* memory, std::size_t bytes) override {
    lent_scratch_ = memory;
    lent_scratch_bytes_ = bytes;
  }
  std::shared_ptr<void>& library(Library which) override {
    return libraries_[static_cast<std::size_t>(which)];
  }
  void defer(const Work& work, std::function<void()> task) override;
  const std::shared_ptr<StreamFailure>& failure() override { return failure_; }

 private:
  struct Deferred {
    Work work;
    std::function<void()> task;
  };
  /// Called back by the driver; see submit_on_host.
  struct HostTask {
    std::function<void()> task;
    std::shared_ptr<StreamFailure> failure;
    bool is_captured = false;  ///< runs again, and is the stream's to keep

    static void run(void* data) noexcept;
  };
  struct Span {
    Work work;
    cudaEvent_t begin = nullptr, end = nullptr;
  };

  void enqueue_on_host(std::function<void()> task);
  bool capturing() const;
  /// Submits what was deferred.
  void settle();
  void run(const Work& work, const std::function<void()>& task);
  /// Must be called in a catch.
  void fail_with(const std::string& what);
  void report_failure(const std::string& what);
  cudaEvent_t mark();
  void report_spans();

  DeviceState& device_;
  const StreamOptions options_;
  cudaStream_t stream_ = nullptr;
  void* lent_scratch_ = nullptr;
  std::size_t lent_scratch_bytes_ = 0;
  void* scratch_ = nullptr;  ///< for what is larger
  std::size_t scratch_bytes_ = 0;
  bool scratch_is_captured_ = false;
  std::vector<void*> scratch_of_graphs_;  ///< outgrown, but captured
  std::vector<std::unique_ptr<HostTask>> tasks_of_graphs_;
  bool in_task_ = false;
  std::array<std::shared_ptr<void>, 3> libraries_;
  std::vector<Span> spans_;  ///< not yet reported
  std::optional<Deferred> deferred_;
  std::string_view going_on_;  ///< the action that work without one belongs to; "": none
  const std::shared_ptr<StreamFailure> failure_ = std::make_shared<StreamFailure>();
  bool failure_reported_ = false;
};

}  // namespace tessera::cuda
