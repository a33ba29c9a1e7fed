#include "fake_runtime.h"

#include <cstdio>
#include <exception>

#include "emulator/hooks.h"
#include "grid.h"
#include "tessera/core/error.h"

namespace tessera::emulator {
namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

/// Never destroyed: workers may outlive main().
Runtime& runtime() {
  static Runtime* const the_runtime = new Runtime;
  return *the_runtime;
}

namespace {

/// Made before there are threads: ThreadSanitizer, which does not see into this file
/// (CMakeLists.txt), would miss that the one that makes it comes before those that find it made.
[[maybe_unused]] const Runtime& made_early = runtime();

}  // namespace

int current_device() { return device_of_thread; }

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t begin_call(std::string_view function) {
  Runtime& state = runtime();
  if (const auto failure = state.failures.find(function); failure != state.failures.end()) {
    Runtime::Failure& told = failure->second;
    if (told.calls_left > 0) --told.calls_left;
    if (told.calls_left == 0) {
      const cudaError_t error = told.error;
      if (told.repeat == fake_cuda::Repeat::kOnce) state.failures.erase(failure);
      return error;
    }
  }
  if (state.settings.driver_version / 1000 < CUDART_VERSION / 1000) {
    return cudaErrorInsufficientDriver;
  }
  return state.settings.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t throw_fault(Fault* fault) {
  if (fault == nullptr || fault->reported.exchange(true)) return cudaSuccess;
  if (std::uncaught_exceptions() > 0) {
    std::fprintf(stderr, "found while another exception is on its way: %s\n", fault->what.c_str());
    return report(cudaErrorLaunchFailure);
  }
  fail(ErrorCode::kInternal, fault->what);
}

cudaStream_t Runtime::new_stream(int device) {
  auto* stream = new CUstream_st(device, settings.seed * 7919U + streams_made++);
  streams.insert(stream);
  return stream;
}

cudaStream_t Runtime::find(cudaStream_t stream) {
  if (stream != nullptr) return streams.contains(stream) ? stream : nullptr;
  cudaStream_t& of_device = default_streams[current_device()];
  if (of_device == nullptr) of_device = new_stream(current_device());
  return of_device;
}

std::size_t& Runtime::used(int device) {
  const auto index = static_cast<std::size_t>(device);
  if (used_bytes.size() <= index) used_bytes.resize(index + 1);
  return used_bytes[index];
}

cudaError_t submit(cudaStream_t stream, GraphNode node) {
  Runtime& state = runtime();
  stream = state.find(stream);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const auto capture = capture_of(stream)) {
    if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
    capture->add(stream, std::move(node));
    return cudaSuccess;
  }
  if (node.kind == GraphNode::Kind::kKernel) ++state.counters.launches;
  stream->enqueue(std::move(node.action), state.settings.max_delay_us);
  return cudaSuccess;
}

cudaError_t enqueue(Launch launch, cudaStream_t stream) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaLaunchKernel")) return report(error);
  const auto raised = state.shared_limits.find(launch.kernel);
  const std::size_t limit =
      raised != state.shared_limits.end() ? raised->second : kDefaultSharedBytes;
  if (const cudaError_t error = check_launch(launch, limit)) return report(error);
  // What may be dynamic, no static memory takes away.
  const std::size_t total = raised != state.shared_limits.end() ? kMaxSharedBytes : limit;
  return report(
      submit(stream, {.kind = GraphNode::Kind::kKernel,
                      .action = [launch = std::move(launch), total] { run_grid(launch, total); }}));
}

}  // namespace tessera::emulator

using namespace tessera::emulator;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaFuncSetAttribute")) return report(error);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || kernel == nullptr || value < 0 ||
      static_cast<std::size_t>(value) > kMaxSharedBytes) {
    return report(cudaErrorInvalidValue);
  }
  state.shared_limits[kernel] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaSetDevice")) return report(error);
  if (device < 0 || device >= state.settings.devices) return report(cudaErrorInvalidDevice);
  device_of_thread = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return last_error; }

namespace fake_cuda {

void configure(const Settings& settings) {
  const std::lock_guard lock(runtime().mutex);
  runtime().settings = settings;
}

Counters counters() {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  Counters counters = state.counters;
  counters.unreported_faults = unreported_faults();
  return counters;
}

void fail_call(const char* function, int nth, cudaError_t error, Repeat repeat) {
  const std::lock_guard lock(runtime().mutex);
  runtime().failures[function] = {.calls_left = nth, .error = error, .repeat = repeat};
}

void stop_failing() {
  const std::lock_guard lock(runtime().mutex);
  runtime().failures.clear();
}

}  // namespace fake_cuda
