#include "free_memory_cuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace tessera::cuda {

FreeMemory::FreeMemory() {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library_ == nullptr) return;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library_, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<Shutdown>(dlsym(library_, "nvmlShutdown"));
  const auto find = reinterpret_cast<FindDevice>(dlsym(library_, "nvmlDeviceGetHandleByUUID"));
  const auto memory = reinterpret_cast<GetMemory>(dlsym(library_, "nvmlDeviceGetMemoryInfo"));
  const bool complete =
      init != nullptr && shutdown != nullptr && find != nullptr && memory != nullptr;
  if (!complete || init() != 0) return;
  shutdown_ = shutdown;
  find_device_ = find;
  get_memory_ = memory;
}

FreeMemory::~FreeMemory() {
  if (shutdown_ != nullptr) static_cast<void>(shutdown_());
  if (library_ != nullptr) dlclose(library_);
}

bool FreeMemory::ask_nvml(const std::string& uuid, std::int64_t& bytes) const {
  void* device = nullptr;
  Memory memory{};
  if (find_device_ == nullptr || find_device_(uuid.c_str(), &device) != 0 ||
      get_memory_(device, &memory) != 0) {
    return false;
  }
  bytes = static_cast<std::int64_t>(memory.free);
  return true;
}

std::int64_t FreeMemory::of(int ordinal, const std::string& uuid) const {
  std::int64_t bytes = 0;
  if (ask_nvml(uuid, bytes)) return bytes;
  int before = 0;
  std::size_t left = 0, total = 0;
  if (cudaGetDevice(&before) != cudaSuccess) return 0;
  if (cudaSetDevice(ordinal) == cudaSuccess && cudaMemGetInfo(&left, &total) == cudaSuccess) {
    bytes = static_cast<std::int64_t>(left);
  }
  static_cast<void>(cudaSetDevice(before));
  static_cast<void>(cudaGetLastError());
  return bytes;
}

}  // namespace tessera::cuda
