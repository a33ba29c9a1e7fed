#include "cuda/cudnn_library_cuda.h"

#include <dlfcn.h>

#include <array>

#include "tessera/core/error.h"

namespace tessera::cuda {
namespace {

constexpr const char* kFile = "libcudnn.so.9";
constexpr const char* kRemedy =
    "install cuDNN 9.15.1 or newer for CUDA 13 where the loader finds it (LD_LIBRARY_PATH, "
    "ldconfig)";

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  require(function != nullptr, ErrorCode::kUnavailable, kFile, " has no ", name, "; ", kRemedy);
}

}  // namespace

CudnnLibrary::CudnnLibrary() {
  // Never closed: threads and handles of cuDNN may outlive any of our objects.
  void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    fail(ErrorCode::kUnavailable, "cuDNN is not here (", why == nullptr ? kFile : why, "); ",
         kRemedy);
  }
  find(library, "cudnnGetVersion", get_version);
  require(get_version() >= kOldest, ErrorCode::kUnavailable, "cuDNN is of version ", get_version(),
          ", older than ", kOldest, "; ", kRemedy);
  find(library, "cudnnGetErrorString", get_error_string);
  find(library, "cudnnGetLastErrorString", get_last_error_string);
  find(library, "cudnnCreate", create);
  find(library, "cudnnDestroy", destroy);
  find(library, "cudnnSetStream", set_stream);
  find(library, "cudnnBackendCreateDescriptor", create_descriptor);
  find(library, "cudnnBackendDestroyDescriptor", destroy_descriptor);
  find(library, "cudnnBackendSetAttribute", set_attribute);
  find(library, "cudnnBackendGetAttribute", get_attribute);
  find(library, "cudnnBackendFinalize", finalize);
  find(library, "cudnnBackendExecute", execute);
}

std::string CudnnLibrary::describe(cudnnStatus_t status) const {
  std::array<char, 1024> text{};
  get_last_error_string(text.data(), text.size());
  const char* const name = get_error_string(status);
  return text[0] == '\0' ? name : concat(name, " (", text.data(), ")");
}

void CudnnLibrary::check(cudnnStatus_t status, const char* what) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const bool not_supported = CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED;
  fail(not_supported ? ErrorCode::kUnavailable : ErrorCode::kInternal, "cuDNN: ", what,
       " failed with ", describe(status));
}

}  // namespace tessera::cuda
