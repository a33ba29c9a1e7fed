#include "fake_runtime.h"

#include <atomic>
#include <cstdio>
#include <exception>

#include "emulator/hooks.h"
#include "grid.h"
#include "tessera/core/error.h"

namespace tessera::emulator {
namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;
std::atomic<cudaError_t> lost = cudaSuccess;

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

cudaError_t sticky_error() { return lost; }

cudaError_t begin_call(std::string_view function) {
  if (const cudaError_t error = sticky_error()) return error;
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
  if (fault == nullptr || fault->reported.exchange(true)) return report(sticky_error());
  if (std::uncaught_exceptions() > 0) {
    std::fprintf(stderr, "found while another exception is on its way: %s\n", fault->what.c_str());
    return report(cudaErrorLaunchFailure);
  }
  fail(ErrorCode::kInternal, fault->what);
}

cudaStream_t Runtime::new_stream(int device, int priority) {
  const std::uint32_t number = streams_made++;
  auto* stream = new CUstream_st(device, number, priority, settings.seed * 7919U + number);
  streams.insert(stream);
  return stream;
}

cudaStream_t Runtime::find(cudaStream_t stream) {
  if (stream != nullptr) return streams.contains(stream) ? stream : nullptr;
  cudaStream_t& of_device = default_streams[current_device()];
  if (of_device == nullptr) of_device = new_stream(current_device(), 0);
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
    if (capture->thread != std::this_thread::get_id()) ++state.counters.foreign_captures;
    capture->add(stream, std::move(node));
    return cudaSuccess;
  }
  enqueue(stream, node, stream->priority());
  return cudaSuccess;
}

void enqueue(cudaStream_t stream, const GraphNode& node, int priority) {
  Runtime& state = runtime();
  const bool kernel = node.kind == GraphNode::Kind::kKernel;
  if (kernel) ++state.counters.launches;
  KernelTurns* const turns =
      kernel && state.settings.one_kernel_at_a_time ? &state.turns[stream->device()] : nullptr;
  const bool skipped =
      !state.settings.computes && (kernel || node.kind == GraphNode::Kind::kHostFunction);
  const bool planted =
      kernel && state.kernels_to_illegal_access > 0 && --state.kernels_to_illegal_access == 0;
  const auto work = [turns, priority, planted, skipped, number = stream->number(),
                     action = node.action] {
    const KernelTurns::Turn turn(turns, {priority, number});
    if (planted) lost = cudaErrorIllegalAddress;
    if (sticky_error() == cudaSuccess && !skipped) action();
  };
  const bool delayed = priority < 0 || !state.settings.delays_urgent_only;
  stream->enqueue(work, delayed ? state.settings.max_delay_us : 0);
}

cudaError_t enqueue(Launch launch, cudaStream_t stream) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (const cudaError_t error = begin_call("cudaLaunchKernel")) return report(error);
  const auto raised = state.shared_limits.find(launch.kernel);
  const std::size_t limit =
      raised != state.shared_limits.end() ? raised->second : kDefaultSharedBytes;
  if (const cudaError_t error = check_launch(launch, limit)) return report(error);
  state.counters.dynamic_shared_bytes += static_cast<std::int64_t>(launch.dynamic_shared_bytes);
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

cudaError_t cudaGetLastError() {
  const cudaError_t error = std::exchange(last_error, cudaSuccess);
  return sticky_error() != cudaSuccess ? sticky_error() : error;
}

cudaError_t cudaPeekAtLastError() {
  return sticky_error() != cudaSuccess ? sticky_error() : last_error;
}

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
  for (const auto& [device, turns] : state.turns) counters.waiting_kernels += turns.waiting();
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

void plant_illegal_access(int nth) {
  const std::lock_guard lock(runtime().mutex);
  runtime().kernels_to_illegal_access = nth;
}

bool is_lost() { return sticky_error() != cudaSuccess; }

void pass_time(std::chrono::microseconds time) { tessera::emulator::pass_time(time); }

cudaError_t launch_host(cudaStream_t stream, std::function<void()> function) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_call("cudaLaunchHostFunc")) return report(error);
  return report(
      submit(stream, {.kind = GraphNode::Kind::kHostFunction, .action = std::move(function)}));
}

}  // namespace fake_cuda
