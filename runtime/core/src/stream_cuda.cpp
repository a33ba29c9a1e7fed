#include "stream_cuda.h"

#include <nvtx3/nvToolsExt.h>
#include <algorithm>

#include <chrono>
#include <string>
#include <utility>

#include "check_cuda.h"

namespace tessera::cuda {
namespace {

class EventCuda : public Event::State {
 public:
  EventCuda(std::shared_ptr<EventPool> pool, std::atomic<std::int64_t>& host_waits,
            bool again = false)
      : across_graphs(again),
        pool_(std::move(pool)),
        event_(pool_->take()),
        host_waits_(host_waits) {}
  ~EventCuda() override { pool_->give_back(event_); }
  EventCuda(const EventCuda&) = delete;
  EventCuda& operator=(const EventCuda&) = delete;
  /// Recorded again and again, in graphs and outside: see make_event.
  const bool across_graphs;

  cudaEvent_t handle() const { return event_; }
  void synchronize() override {
    ++host_waits_;
    TESSERA_CUDA_CHECK(cudaEventSynchronize(event_));
  }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
  std::atomic<std::int64_t>& host_waits_;
};

class GraphCuda : public CudaGraph {
 public:
  explicit GraphCuda(cudaGraph_t graph) {
    // Else every node has the priority of the stream that the graph is launched into.
    TESSERA_CUDA_CHECK(
        cudaGraphInstantiate(&executable_, graph, cudaGraphInstantiateFlagUseNodePriority));
  }
  ~GraphCuda() override { static_cast<void>(cudaGraphExecDestroy(executable_)); }
  GraphCuda(const GraphCuda&) = delete;
  GraphCuda& operator=(const GraphCuda&) = delete;

  /// False if `graph` differs in more than values.
  bool update(cudaGraph_t graph) {
    cudaGraphExecUpdateResultInfo info{};
    const cudaError_t status = cudaGraphExecUpdate(executable_, graph, &info);
    static_cast<void>(cudaGetLastError());  // "cannot be updated" is an answer
    return status == cudaSuccess && info.result == cudaGraphExecUpdateSuccess;
  }
  cudaGraphExec_t handle() const { return executable_; }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

/// A range on the timeline of Nsight Systems.
class Range {
 public:
  Range(bool shown, std::string_view name) : shown_(shown) {
    if (shown_) nvtxRangePushA(std::string(name).c_str());
  }
  ~Range() {
    if (shown_) nvtxRangePop();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  bool shown_;
};

}  // namespace

EventPool::~EventPool() {
  for (cudaEvent_t event : free_) static_cast<void>(cudaEventDestroy(event));
}

cudaEvent_t EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  TESSERA_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags_));
  return event;
}

void EventPool::give_back(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

StreamCuda::StreamCuda(DeviceState& device, StreamOptions options)
    : device_(device), options_(std::move(options)) {
  TESSERA_CUDA_CHECK(cudaSetDevice(device_.ordinal));
  int least = 0, greatest = 0;
  TESSERA_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  // Lower numbers go first; a GPU of one priority has the same for all.
  const int normal = std::max(greatest, least - 1);
  const int priority = options_.priority == StreamPriority::kUrgent       ? greatest
                       : options_.priority == StreamPriority::kBackground ? least
                                                                          : normal;
  TESSERA_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
}

StreamCuda::~StreamCuda() {
  settle();
  static_cast<void>(cudaStreamSynchronize(stream_));
  for (auto& library : libraries_) library.reset();
  for (const Span& span : spans_) {
    device_.timed_events->give_back(span.begin);
    device_.timed_events->give_back(span.end);
  }
  static_cast<void>(cudaFree(scratch_));
  for (void* scratch : scratch_of_graphs_) static_cast<void>(cudaFree(scratch));
  static_cast<void>(cudaStreamDestroy(stream_));
}

void StreamCuda::submit(const Work& work, std::function<void()> task) {
  settle();
  run(work, task);
}

/// A task may submit one, which is a part of it then.
void StreamCuda::submit_on_host(const Work& work, std::function<void()> task) {
  if (in_task_) return enqueue_on_host(std::move(task));
  submit(work, [&] { enqueue_on_host(std::move(task)); });
}

void StreamCuda::enqueue_on_host(std::function<void()> task) {
  const bool is_captured = capturing();
  auto owned = std::make_unique<HostTask>(HostTask{std::move(task), failure_, is_captured});
  TESSERA_CUDA_CHECK(cudaLaunchHostFunc(stream_, HostTask::run, owned.get()));
  if (is_captured) {
    tasks_of_graphs_.push_back(std::move(owned));
  } else {
    static_cast<void>(owned.release());  // run() deletes it, or has done so already
  }
}

void StreamCuda::HostTask::run(void* data) noexcept {
  auto* const self = static_cast<HostTask*>(data);
  try {
    if (!self->failure->get()) self->task();
  } catch (...) {
    self->failure->set(std::current_exception());
  }
  if (!self->is_captured) delete self;
}

void StreamCuda::defer(const Work& work, std::function<void()> task) {
  settle();
  deferred_ = Deferred{.work = work, .task = std::move(task)};
}

void StreamCuda::settle() {
  if (!deferred_) return;
  const Deferred deferred = *std::exchange(deferred_, std::nullopt);
  run(deferred.work, deferred.task);
}

void StreamCuda::run(const Work& work, const std::function<void()>& task) {
  if (failure_->get()) return;
  try {
    if (work.action >= 0) going_on_ = work.goes_on ? work.name : std::string_view();
    const bool belongs = work.action < 0 && !going_on_.empty();
    const Range action(device_.nvtx && belongs, going_on_);
    const Range range(device_.nvtx, work.name);
    if (options_.on_begin && !capturing()) {
      using Seconds = std::chrono::duration<double>;
      options_.on_begin(work, Seconds(std::chrono::steady_clock::now().time_since_epoch()).count());
    }
    if (options_.before_task) options_.before_task();
    Span span{.work = work};
    const bool traced = options_.on_span && !capturing();
    if (traced) span.begin = mark();
    const bool in_another = std::exchange(in_task_, true);
    if (task) task();
    in_task_ = in_another;
    if (!traced) return;
    span.end = mark();
    spans_.push_back(span);
  } catch (const std::exception& error) {
    in_task_ = false;
    fail_with(error.what());
  } catch (...) {
    in_task_ = false;
    fail_with("unknown exception");
  }
}

Event StreamCuda::record() {
  settle();
  auto event = std::make_shared<EventCuda>(device_.events, device_.host_waits);
  TESSERA_CUDA_CHECK(cudaEventRecord(event->handle(), stream_));
  return Event(std::move(event));
}

void StreamCuda::wait(const Event& event) {
  settle();
  if (event.state() == nullptr) return;
  const auto* state = dynamic_cast<const EventCuda*>(event.state().get());
  require(state != nullptr, ErrorCode::kInvalidArgument, "CUDA stream '", options_.name,
          "' cannot wait for an event of another kind of device");
  const bool external = state->across_graphs && capturing();
  TESSERA_CUDA_CHECK(cudaStreamWaitEvent(stream_, state->handle(),
                                         external ? cudaEventWaitExternal : cudaEventWaitDefault));
}

Event StreamCuda::make_event() {
  return Event(std::make_shared<EventCuda>(device_.events, device_.host_waits, true));
}

void StreamCuda::record_again(const Event& event) {
  settle();
  const auto* state = dynamic_cast<const EventCuda*>(event.state().get());
  require(state != nullptr && state->across_graphs, ErrorCode::kInvalidArgument, "CUDA stream '",
          options_.name, "' records again what make_event() made, and nothing else");
  TESSERA_CUDA_CHECK(cudaEventRecordWithFlags(
      state->handle(), stream_, capturing() ? cudaEventRecordExternal : cudaEventRecordDefault));
}

void StreamCuda::copy(void* destination, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  submit({.name = "copy"}, [&] {
    TESSERA_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream_));
  });
}

void StreamCuda::synchronize() {
  settle();
  going_on_ = {};
  ++device_.host_waits;
  try {
    TESSERA_CUDA_CHECK(cudaStreamSynchronize(stream_));
  } catch (const Error& error) {
    if (!failure_->get()) fail_with(error.what());
  }
  report_spans();
  const std::exception_ptr failure = failure_->get();
  if (!failure) return;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    report_failure(error.what());  // unless it was found here, it came from enqueued work
    throw;
  }
}

void StreamCuda::begin_capture() {
  settle();
  require(!capturing(), ErrorCode::kInvalidArgument, "stream '", options_.name,
          "' is already capturing a graph");
  TESSERA_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
}

std::unique_ptr<CudaGraph> StreamCuda::end_capture(std::unique_ptr<CudaGraph> previous) {
  settle();
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
  static_cast<void>(cudaGetLastError());
  if (const std::exception_ptr failure = failure_->get()) {
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    std::rethrow_exception(failure);
  }
  require(status == cudaSuccess && graph != nullptr, ErrorCode::kInvalidArgument,
          "the work on stream '", options_.name,
          "' cannot be captured as a graph: ", cudaGetErrorString(status),
          "; nothing in it may wait for the device or take memory from it, and every stream that "
          "joined must be waited for");
  const auto destroy = [](cudaGraph_t g) { static_cast<void>(cudaGraphDestroy(g)); };
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, decltype(destroy)> owner(graph,
                                                                                     destroy);
  auto* known = dynamic_cast<GraphCuda*>(previous.get());
  if (known != nullptr && known->update(graph)) return previous;
  return std::make_unique<GraphCuda>(graph);
}

void StreamCuda::launch(CudaGraph& graph) {
  settle();
  auto* known = dynamic_cast<GraphCuda*>(&graph);
  require(known != nullptr, ErrorCode::kInvalidArgument, "stream '", options_.name,
          "' cannot launch a graph of another backend");
  require(!capturing(), ErrorCode::kInvalidArgument, "stream '", options_.name,
          "' cannot launch a graph while it captures one");
  TESSERA_CUDA_CHECK(cudaGraphLaunch(known->handle(), stream_));
}

void* StreamCuda::scratch(std::size_t bytes) {
  if (bytes <= lent_scratch_bytes_) return lent_scratch_;
  const bool captured = capturing();
  if (bytes <= scratch_bytes_) {
    scratch_is_captured_ = scratch_is_captured_ || captured;
    return scratch_;
  }
  require(!captured, ErrorCode::kInvalidArgument, "stream '", options_.name, "' needs ", bytes,
          " bytes of scratch while it captures a graph; run the same work once without capture");
  device_.host_waits += 2;
  TESSERA_CUDA_CHECK(cudaSetDevice(device_.ordinal));
  TESSERA_CUDA_CHECK(cudaStreamSynchronize(stream_));
  scratch_bytes_ = 0;
  void* const outgrown = std::exchange(scratch_, nullptr);
  if (std::exchange(scratch_is_captured_, false)) {
    scratch_of_graphs_.push_back(outgrown);  // graphs go on using it
  } else {
    TESSERA_CUDA_CHECK(cudaFree(outgrown));
  }
  TESSERA_CUDA_CHECK(cudaMalloc(&scratch_, bytes));
  scratch_bytes_ = bytes;
  return scratch_;
}

bool StreamCuda::capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  TESSERA_CUDA_CHECK(cudaStreamIsCapturing(stream_, &status));
  return status != cudaStreamCaptureStatusNone;
}

void StreamCuda::fail_with(const std::string& what) {
  failure_->set(std::current_exception());
  report_failure(what);
}

void StreamCuda::report_failure(const std::string& what) {
  if (std::exchange(failure_reported_, true) || !options_.on_error) return;
  options_.on_error(what);
}

cudaEvent_t StreamCuda::mark() {
  cudaEvent_t event = device_.timed_events->take();
  TESSERA_CUDA_CHECK(cudaEventRecord(event, stream_));
  return event;
}

std::function<double()> StreamCuda::mark_time() {
  return [this, event = mark()] { return seconds_of(event); };
}

double StreamCuda::seconds_of(cudaEvent_t event) {
  float milliseconds = 0.0F;
  const cudaError_t status = cudaEventElapsedTime(&milliseconds, device_.epoch, event);
  device_.timed_events->give_back(event);
  static_cast<void>(cudaGetLastError());
  return status == cudaSuccess ? device_.epoch_seconds + static_cast<double>(milliseconds) * 1e-3
                               : 0.0;
}

/// The stream is idle: what has been timed is known.
void StreamCuda::report_spans() {
  for (const Span& span : std::exchange(spans_, {})) {
    const double begin = seconds_of(span.begin);
    options_.on_span(span.work, begin, seconds_of(span.end));
  }
}

}  // namespace tessera::cuda
