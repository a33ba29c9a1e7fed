#include "status_cuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <string>

#include "check_cuda.h"
#include "free_memory_cuda.h"

namespace tessera::cuda {
namespace {

/// The oldest GPU that the kernels are compiled for.
constexpr int kOldestMajor = 8;

/// "13.0" of 13000.
std::string cuda_version(int number) {
  return number > 0 ? concat(number / 1000, ".", number % 1000 / 10) : "";
}

// Libraries stay in memory once looked at (RTLD_NODELETE): NCCL leaks when it is unloaded.

/// A library's version by calling its `function`, which returns major * 10000 + minor * 100 +
/// patch; empty if the library is not there.
std::string library_version(const char* file, const char* function) {
  void* library = dlopen(file, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return "";
  std::string version;
  if (void* symbol = dlsym(library, function); symbol != nullptr) {
    const std::size_t number = reinterpret_cast<std::size_t (*)()>(symbol)();
    version = concat(number / 10000, ".", number / 100 % 100, ".", number % 100);
  }
  dlclose(library);
  return version;
}

std::string nccl_version() {
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return "";
  std::string version;
  int number = 0;
  if (void* symbol = dlsym(library, "ncclGetVersion");
      symbol != nullptr && reinterpret_cast<int (*)(int*)>(symbol)(&number) == 0) {
    version = concat(number / 10000, ".", number / 100 % 100, ".", number % 100);
  }
  dlclose(library);
  return version;
}

std::string uuid_text(const cudaDeviceProp& properties) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(properties.uuid.bytes[i])));
    text += hex.data();
  }
  return text;
}

CudaGpu describe(int ordinal, int count, const FreeMemory& free_memory) {
  cudaDeviceProp properties{};
  TESSERA_CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
  CudaGpu gpu{.ordinal = ordinal,
              .name = properties.name,
              .uuid = uuid_text(properties),
              .major = properties.major,
              .minor = properties.minor,
              .multiprocessors = properties.multiProcessorCount,
              .total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem)};
  std::array<char, 32> pci{};
  if (cudaDeviceGetPCIBusId(pci.data(), static_cast<int>(pci.size()), ordinal) == cudaSuccess) {
    gpu.pci = pci.data();
  }
  gpu.free_bytes = free_memory.of(ordinal, gpu.uuid);
  for (int peer = 0; peer < count; ++peer) {
    int can = 0;
    if (peer != ordinal && cudaDeviceCanAccessPeer(&can, ordinal, peer) == cudaSuccess &&
        can != 0) {
      gpu.peers.push_back(peer);
    }
  }
  return gpu;
}

/// Why no GPU can be used; empty if one can.
std::string find_problem(int driver, int runtime, cudaError_t counted, int count) {
  if (driver == 0) return "no NVIDIA driver is installed or it does not answer";
  if (driver / 1000 < runtime / 1000) {
    return concat("the NVIDIA driver is too old: it runs CUDA ", cuda_version(driver),
                  " and this build needs ", cuda_version(runtime),
                  "; install a driver of the series 580 or newer");
  }
  if (counted != cudaSuccess) {
    return concat("CUDA cannot be used: ", cudaGetErrorString(counted), " (",
                  cudaGetErrorName(counted), ")");
  }
  if (count == 0) return "no GPU can be seen (CUDA_VISIBLE_DEVICES may hide them)";
  return "";
}

}  // namespace

void fill_status(CudaStatus& status) {
  int driver = 0, runtime = 0, count = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  const cudaError_t counted = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  status.driver_version = cuda_version(driver);
  status.runtime_version = cuda_version(runtime);
  status.blas_version = library_version("libcublasLt.so.13", "cublasLtGetVersion");
  status.dnn_version = library_version("libcudnn.so.9", "cudnnGetVersion");
  status.nccl_version = nccl_version();
  status.problem = find_problem(driver, runtime, counted, count);
  if (!status.usable()) return;
  const FreeMemory free_memory;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    status.gpus.push_back(describe(ordinal, count, free_memory));
  }
  for (const CudaGpu& gpu : status.gpus) {
    if (gpu.major >= kOldestMajor) continue;
    status.problem = concat("GPU ", gpu.ordinal, " (", gpu.name, ") has compute capability ",
                            gpu.major, ".", gpu.minor, ", and the kernels need ", kOldestMajor,
                            ".0 (Ampere) or newer; hide it (CUDA_VISIBLE_DEVICES), or use `device` "
                            "cpu");
    return;
  }
}

}  // namespace tessera::cuda

extern "C" __attribute__((visibility("default"))) void tessera_cuda_fill_status(
    tessera::CudaStatus& status) {
  tessera::cuda::fill_status(status);
}
