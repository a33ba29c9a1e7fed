#pragma once

#include <cudnn.h>
#include <cudnn_backend.h>

#include <cstddef>
#include <string>

namespace tessera::cuda {

/// The functions of libcudnn.so.9 that we call. It is loaded at run time, so that everything else
/// works where it is missing.
struct CudnnLibrary {
  /// Loads it for the rest of the process. Throws Error{kUnavailable} if it is not found or older
  /// than kOldest.
  CudnnLibrary();

  /// 9.15.1: until then attention's backward pass accesses invalid memory when a graph replays it
  /// and the length is no multiple of 128 (release notes of NVIDIA's cudnn-frontend 1.16.0).
  static constexpr std::size_t kOldest = 91501;

  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnGetErrorString) get_error_string = nullptr;
  decltype(&cudnnGetLastErrorString) get_last_error_string = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;

  /// The name of a status, and what cuDNN says of this thread's last error if it says anything.
  std::string describe(cudnnStatus_t status) const;
  /// Throws Error with cuDNN's explanation unless `status` is success: kUnavailable if that is one
  /// of "not supported", which others may do instead, else kInternal.
  void check(cudnnStatus_t status, const char* what) const;
};

}  // namespace tessera::cuda
