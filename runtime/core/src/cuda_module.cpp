#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_backend.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"

// Finding and loading the CUDA backend. It is a module of its own because the libraries below it
// cost every process 200 MB and 70 ms of relocations, used or not.
namespace tessera {
namespace {

constexpr const char* kFile = "libtessera_cuda.so";

/// The folder of the file that holds this function: the program, or a shared library around us.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return {};
  std::error_code ignored;
  const auto path = std::filesystem::canonical(info.dli_fname, ignored);
  // The program itself may be known by the name it was called with, which is no path.
  return ignored ? std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path()
                 : path.parent_path();
}

std::vector<std::filesystem::path> places() {
  if (const char* given = std::getenv("TESSERA_CUDA_MODULE"); given != nullptr && *given != '\0') {
    return {given};
  }
  const std::filesystem::path folder = own_folder();
  return {folder / kFile, folder / ".." / "lib" / kFile, folder / ".." / "lib" / "tessera" / kFile,
          std::filesystem::path(TESSERA_MODULE_FOLDER) / kFile};
}

/// The loaded module; says why there is none otherwise. Loading is tried once.
struct Module {
  void* handle = nullptr;
  std::string path;
  std::string problem;
};

Module load() {
  Module module;
  if (dlsym(RTLD_DEFAULT, kMakeCudaDevice) != nullptr) {  // linked into the program
    module.handle = RTLD_DEFAULT;
    module.path = "built in";
    return module;
  }
  std::string tried;
  for (const std::filesystem::path& place : places()) {
    std::error_code ignored;
    if (!std::filesystem::exists(place, ignored)) {
      tried += (tried.empty() ? "" : ", ") + place.lexically_normal().string();
      continue;
    }
    module.handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    module.path = std::filesystem::canonical(place, ignored).string();
    if (module.handle == nullptr) {
      const char* why = dlerror();
      module.problem = concat("the CUDA backend ", module.path,
                              " cannot be loaded: ", why != nullptr ? why : "no reason given",
                              "; install the CUDA 13 libraries that it names (cuBLAS)");
    }
    return module;
  }
  module.problem =
      concat("this build has no CUDA backend (", kFile, "; looked for ", tried,
             "); build where the CUDA toolkit is found, or name it in TESSERA_CUDA_MODULE");
  return module;
}

const Module& module() {
  static const Module loaded = load();
  return loaded;
}

bool has_driver() {
  if (dlsym(RTLD_DEFAULT, kMakeCudaDevice) != nullptr) return true;  // it brings its own
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

}  // namespace

void* cuda_symbol(const char* name) {
  require(module().handle != nullptr || module().path == "built in", ErrorCode::kUnavailable,
          module().problem);
  void* symbol = dlsym(module().handle, name);
  require(symbol != nullptr, ErrorCode::kUnavailable, "the CUDA backend ", module().path,
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
  if (module().handle == nullptr && module().path != "built in") {
    status.problem = module().problem;
    return status;
  }
  status.module = module().path;
  const auto fill = reinterpret_cast<FillCudaStatus*>(cuda_symbol(kFillCudaStatus));
  fill(status);
  return status;
}

std::unique_ptr<CudaDevice> make_cuda_device(CudaDeviceOptions options) {
  require(has_driver(), ErrorCode::kUnavailable,
          "no NVIDIA driver is installed (libcuda.so.1 was not found); train on the CPU with "
          "--device cpu");
  const auto make = reinterpret_cast<MakeCudaDevice*>(cuda_symbol(kMakeCudaDevice));
  return std::unique_ptr<CudaDevice>(make(options));
}

}  // namespace tessera
