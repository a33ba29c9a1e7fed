#include <dlfcn.h>

#include "cuda_backend.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/loaded_module.h"

// Finding and loading the CUDA backend. It is a module of its own because the libraries below it
// cost every process 200 MB and 70 ms of relocations, used or not.
namespace tessera {
namespace {

constexpr ModuleFile kModule{
    .name = "CUDA backend",
    .file = "libtessera_cuda.so",
    .variable = "TESSERA_CUDA_MODULE",
    .flags = RTLD_NOW | RTLD_LOCAL,
    .if_missing = "build where the CUDA toolkit is found, or name it in TESSERA_CUDA_MODULE",
    .if_unusable = "install the CUDA 13 libraries that it names (cuBLAS)"};

bool is_built_in() { return dlsym(RTLD_DEFAULT, kMakeCudaDevice) != nullptr; }

/// Loading is tried once.
const LoadedModule& module() {
  static const LoadedModule loaded = is_built_in()
                                         ? LoadedModule{.handle = RTLD_DEFAULT, .path = "built in"}
                                         : load_module(kModule);
  return loaded;
}

bool has_driver() {
  if (is_built_in()) return true;  // it brings its own
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

}  // namespace

void* cuda_symbol(const char* name) {
  require(module().problem.empty(), ErrorCode::kUnavailable, module().problem);
  void* symbol = dlsym(module().handle, name);
  require(symbol != nullptr, ErrorCode::kUnavailable, "the CUDA backend ", module().path.string(),
          " has no '", name, "': it belongs to another version; build both together");
  return symbol;
}

CudaStatus cuda_status() {
  CudaStatus status;
  if (!has_driver()) {
    // Said first: on a machine without GPU the backend need not even be loaded.
    status.problem = "no NVIDIA driver is installed (libcuda.so.1 was not found)";
    return status;
  }
  if (!module().problem.empty()) {
    status.problem = module().problem;
    return status;
  }
  status.module = module().path.string();
  const auto fill = reinterpret_cast<FillCudaStatus*>(cuda_symbol(kFillCudaStatus));
  fill(status);
  return status;
}

std::unique_ptr<CudaDevice> make_cuda_device(CudaDeviceOptions options) {
  require(has_driver(), ErrorCode::kUnavailable,
          "no NVIDIA driver is installed (libcuda.so.1 was not found); train on the CPU with "
          "`device` cpu");
  const auto make = reinterpret_cast<MakeCudaDevice*>(cuda_symbol(kMakeCudaDevice));
  return std::unique_ptr<CudaDevice>(make(options));
}

}  // namespace tessera
