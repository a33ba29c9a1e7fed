#include <cstdio>

#include "fake_runtime.h"
#include "grid.h"

// What the emulated GPUs say of themselves, and the names of errors.

using namespace tessera::emulator;

namespace {

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
#define TEXT(error, text) \
  ErrorText { error, #error, text }
constexpr ErrorText kTexts[] = {
    TEXT(cudaSuccess, "no error"),
    TEXT(cudaErrorInvalidValue, "invalid argument"),
    TEXT(cudaErrorMemoryAllocation, "out of memory"),
    TEXT(cudaErrorInitializationError, "initialization error"),
    TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    TEXT(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    TEXT(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    TEXT(cudaErrorInsufficientDriver,
         "CUDA driver version is insufficient for CUDA runtime version"),
    TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    TEXT(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    TEXT(cudaErrorNotReady, "device not ready"),
    TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    TEXT(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    TEXT(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    TEXT(cudaErrorNotPermitted, "operation not permitted"),
    TEXT(cudaErrorNotSupported, "operation not supported"),
    TEXT(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    TEXT(cudaErrorStreamCaptureInvalidated,
         "operation failed due to a previous error during capture"),
    TEXT(cudaErrorStreamCaptureMerge,
         "operation would result in a merge of separate capture sequences"),
    TEXT(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    TEXT(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    TEXT(cudaErrorStreamCaptureIsolation,
         "dependency created on uncaptured work in another stream"),
    TEXT(cudaErrorStreamCaptureImplicit,
         "operation would make the legacy stream depend on a capturing blocking stream"),
    TEXT(cudaErrorCapturedEvent,
         "operation not permitted on an event last recorded in a capturing stream"),
    TEXT(cudaErrorStreamCaptureWrongThread,
         "attempt to terminate a thread-local capture sequence from another thread"),
    TEXT(cudaErrorGraphExecUpdateFailure,
         "the graph update was not performed because it included changes which violated "
         "constraints specific to instantiated graph update"),
    TEXT(cudaErrorUnknown, "unknown error"),
};
#undef TEXT

const ErrorText& text_of(cudaError_t error) {
  for (const ErrorText& text : kTexts) {
    if (text.error == error) return text;
  }
  static constexpr ErrorText kNone{cudaErrorUnknown, "unrecognized error code",
                                   "unrecognized error code"};
  return kNone;
}

constexpr int kMultiprocessors = 4;
constexpr int kL2Bytes = 50 << 20;

/// Under the lock: the error of a call about this device.
cudaError_t begin_device_call(std::string_view function, int device) {
  if (const cudaError_t error = begin_call(function)) return error;
  const bool known = device >= 0 && device < runtime().settings.devices;
  return known ? cudaSuccess : cudaErrorInvalidDevice;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }

cudaError_t cudaDriverGetVersion(int* version) {
  const std::lock_guard lock(runtime().mutex);
  *version = runtime().settings.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_call("cudaGetDeviceCount")) return report(error);
  *count = runtime().settings.devices;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_device_call("cudaGetDeviceProperties", device)) {
    return report(error);
  }
  const fake_cuda::Settings& settings = runtime().settings;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Emulated GPU");
  properties->uuid.bytes[15] = static_cast<char>(device + 1);
  properties->totalGlobalMem = settings.memory_bytes;
  properties->sharedMemPerBlock = kDefaultSharedBytes;
  properties->sharedMemPerBlockOptin = static_cast<std::size_t>(settings.block_shared_bytes);
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->major = settings.major;
  properties->minor = settings.minor;
  properties->multiProcessorCount = kMultiprocessors;
  properties->l2CacheSize = kL2Bytes;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_device_call("cudaDeviceGetAttribute", device)) {
    return report(error);
  }
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kDefaultSharedBytes;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = runtime().settings.block_shared_bytes;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = kL2Bytes;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = runtime().settings.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = runtime().settings.minor;
      return cudaSuccess;
  }
  return report(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_device_call("cudaDeviceGetPCIBusId", device)) {
    return report(error);
  }
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02x:00.0",
                static_cast<unsigned>(device + 1));
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  const std::lock_guard lock(runtime().mutex);
  for (const int one : {device, peer}) {
    if (const cudaError_t error = begin_device_call("cudaDeviceCanAccessPeer", one)) {
      return report(error);
    }
  }
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  const std::lock_guard lock(runtime().mutex);
  if (const cudaError_t error = begin_device_call("cudaDeviceEnablePeerAccess", peer)) {
    return report(error);
  }
  if (flags != 0) return report(cudaErrorInvalidValue);
  if (peer == current_device()) return report(cudaErrorInvalidDevice);
  const bool fresh = runtime().peers.insert({current_device(), peer}).second;
  return report(fresh ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}
