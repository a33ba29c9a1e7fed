#include <algorithm>

#include "fake_runtime.h"

// The calls on streams and events.

using namespace tessera::emulator;

namespace {

// As an H200 has them.
constexpr int kLeastPriority = 0, kGreatestPriority = -5;

cudaError_t create_stream(const char* function, cudaStream_t* stream, unsigned flags,
                          int priority) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call(function)) return report(error);
  if (flags != cudaStreamNonBlocking) return report(cudaErrorNotSupported);
  *stream =
      state.new_stream(current_device(), std::clamp(priority, kGreatestPriority, kLeastPriority));
  ++state.counters.streams;
  if (priority <= kGreatestPriority) ++state.counters.urgent_streams;
  return cudaSuccess;
}

/// Under the lock. An event that a capture recorded stands for no moment.
cudaError_t find_moment(const char* function, cudaEvent_t event, Moment** moment) {
  if (const cudaError_t error = begin_call(function)) return error;
  if (!runtime().events.contains(event)) return cudaErrorInvalidResourceHandle;
  if (event->captured) {
    if (const auto capture = event->capture.lock()) {
      return invalidate(*capture, cudaErrorCapturedEvent);
    }
    return cudaErrorCapturedEvent;
  }
  if (const cudaError_t error = forbid_while_capturing()) return error;
  *moment = event->moment;
  return cudaSuccess;
}

cudaError_t wait_while_capturing(Capture& capture, cudaStream_t stream, const CUevent_st& event) {
  if (!event.captured) return invalidate(capture, cudaErrorStreamCaptureIsolation);
  const auto other = event.capture.lock();
  if (other.get() != &capture) {
    if (other) invalidate(*other, cudaErrorStreamCaptureMerge);
    return invalidate(capture, cudaErrorStreamCaptureMerge);
  }
  capture.members.at(stream).frontier.insert(event.frontier.begin(), event.frontier.end());
  return cudaSuccess;
}

/// The node that an event becomes which is external to the capture.
cudaError_t add_event_node(cudaStream_t stream, GraphNode::Kind kind, cudaEvent_t event) {
  if (!capture_of(stream)) return cudaErrorInvalidValue;
  return submit(stream, {.kind = kind, .action = nullptr, .event = event});
}

}  // namespace

void tessera::emulator::forget_recording(CUevent_st& event) {
  if (event.moment != nullptr) event.moment->release();
  event.moment = nullptr;
  event.captured = false;
  event.capture.reset();
  event.frontier.clear();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create_stream("cudaStreamCreateWithFlags", stream, flags, kLeastPriority);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = kLeastPriority;
  *greatest = kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create_stream("cudaStreamCreateWithPriority", stream, flags, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaStreamDestroy")) return report(error);
  if (state.streams.erase(stream) == 0) return report(cudaErrorInvalidResourceHandle);
  if (const auto capture = capture_of(stream)) {
    invalidate(*capture, cudaErrorStreamCaptureInvalidated);
    capture->members.erase(stream);
    state.captures.erase(stream);
  }
  stream->close();
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Runtime& state = runtime();
  {
    const std::lock_guard lock(state.mutex);
    if (const cudaError_t error = begin_call("cudaStreamSynchronize")) return report(error);
    stream = state.find(stream);
    if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
    if (const auto capture = capture_of(stream)) {
      return report(invalidate(*capture, cudaErrorStreamCaptureUnsupported));
    }
    ++state.counters.host_waits;
  }
  return throw_fault(stream->wait());
}

cudaError_t cudaDeviceSynchronize() {
  Runtime& state = runtime();
  std::vector<cudaStream_t> streams;
  {
    const std::lock_guard lock(state.mutex);
    if (const cudaError_t error = begin_call("cudaDeviceSynchronize")) return report(error);
    if (const cudaError_t error = forbid_while_capturing()) return report(error);
    for (cudaStream_t stream : state.streams) {
      if (stream->device() == current_device()) streams.push_back(stream);
    }
    ++state.counters.host_waits;
  }
  Fault* fault = nullptr;
  for (cudaStream_t stream : streams) {
    Fault* found = stream->wait();
    if (fault == nullptr) fault = found;
  }
  return throw_fault(fault);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaStreamQuery")) return report(error);
  stream = state.find(stream);
  if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
  if (const auto capture = capture_of(stream)) {
    return report(invalidate(*capture, cudaErrorStreamCaptureUnsupported));
  }
  if (!stream->idle()) return report(cudaErrorNotReady);
  return throw_fault(stream->wait());
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_call("cudaLaunchHostFunc")) return report(error);
  if (function == nullptr) return report(cudaErrorInvalidValue);
  return report(submit(stream, {.kind = GraphNode::Kind::kHostFunction,
                                .action = [function, data] { function(data); }}));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaStreamWaitEvent")) return report(error);
  stream = state.find(stream);
  if (stream == nullptr || !state.events.contains(event)) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (flags == cudaEventWaitExternal) {
    return report(add_event_node(stream, GraphNode::Kind::kWaitEvent, event));
  }
  if (flags != cudaEventWaitDefault) return report(cudaErrorInvalidValue);
  if (const auto capture = capture_of(stream)) {
    return report(wait_while_capturing(*capture, stream, *event));
  }
  if (event->captured) {  // the stream joins the capture
    const auto capture = event->capture.lock();
    if (!capture) return report(cudaErrorCapturedEvent);
    capture->members[stream] = {.branch = capture->branches++, .frontier = event->frontier};
    state.captures[stream] = capture;
    return cudaSuccess;
  }
  if (event->moment != nullptr) stream->enqueue_wait(event->moment->share());
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaEventCreateWithFlags")) return report(error);
  *event = new CUevent_st{.flags = flags};
  state.events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaEventDestroy")) return report(error);
  if (state.events.erase(event) == 0) return report(cudaErrorInvalidResourceHandle);
  forget_recording(*event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaEventRecord")) return report(error);
  stream = state.find(stream);
  if (stream == nullptr || !state.events.contains(event)) {
    return report(cudaErrorInvalidResourceHandle);
  }
  if (flags == cudaEventRecordExternal) {
    return report(add_event_node(stream, GraphNode::Kind::kRecordEvent, event));
  }
  if (flags != cudaEventRecordDefault) return report(cudaErrorInvalidValue);
  forget_recording(*event);
  if (const auto capture = capture_of(stream)) {
    if (capture->invalidated) return report(cudaErrorStreamCaptureInvalidated);
    event->captured = true;
    event->capture = capture;
    event->frontier = capture->members.at(stream).frontier;
    return cudaSuccess;
  }
  event->moment = stream->enqueue_moment();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(runtime().mutex);
  Moment* moment = nullptr;
  if (const cudaError_t error = find_moment("cudaEventQuery", event, &moment)) {
    return report(error);
  }
  if (moment == nullptr) return cudaSuccess;
  if (!moment->reached()) return report(cudaErrorNotReady);
  moment->wait();
  return throw_fault(moment->fault());
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Moment* moment = nullptr;
  {
    const std::lock_guard lock(runtime().mutex);
    if (const cudaError_t error = find_moment("cudaEventSynchronize", event, &moment)) {
      return report(error);
    }
    ++runtime().counters.host_waits;
    if (moment == nullptr) return cudaSuccess;
    moment->share();
  }
  moment->wait();
  Fault* fault = moment->fault();
  moment->release();
  return throw_fault(fault);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(runtime().mutex);
  Moment* moments[2] = {nullptr, nullptr};
  const cudaEvent_t events[2] = {begin, end};
  for (int i = 0; i < 2; ++i) {
    if (const cudaError_t error = find_moment("cudaEventElapsedTime", events[i], &moments[i])) {
      return report(error);
    }
    if (moments[i] == nullptr || (events[i]->flags & cudaEventDisableTiming) != 0) {
      return report(cudaErrorInvalidResourceHandle);
    }
  }
  for (const Moment* moment : moments) {
    if (!moment->reached()) return report(cudaErrorNotReady);
  }
  const std::chrono::duration<float, std::milli> time = moments[1]->time() - moments[0]->time();
  *milliseconds = time.count();
  return cudaSuccess;
}
