#include <dlfcn.h>

#include <cstdlib>

#include "cuda/cuda_run.h"
#include "cuda/emulated_gpu.h"
#include "tessera/core/cuda_device.h"

// What GPUs have free, and what it costs to ask.
namespace tessera {
namespace {

class CudaFreeMemory : public test::EmulatedGpu {
 protected:
  CudaFreeMemory() : EmulatedGpu({.devices = 3, .memory_bytes = std::size_t{64} << 30}) {}
  ~CudaFreeMemory() override {
    unsetenv("STUB_NVML");
    cudaSetDevice(0);
  }
};

TEST_F(CudaFreeMemory, OfCudaLeavesTheThreadsDeviceAsItWas) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  for (const CudaGpu& gpu : cuda_status().gpus) {
    EXPECT_EQ(gpu.free_bytes, std::int64_t{64} << 30) << gpu.ordinal;
  }
  int now = -1;
  ASSERT_EQ(cudaGetDevice(&now), cudaSuccess);
  EXPECT_EQ(now, 1);
}

TEST_F(CudaFreeMemory, OfNvmlTouchesNoGpu) {
  // Loaded under NVML's name: the loader gives it to whoever asks for that.
  void* const stub = dlopen(TESSERA_STUB_NVML, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(stub, nullptr) << dlerror();
  setenv("STUB_NVML", "1", 1);
  fake_cuda::fail_call("cudaSetDevice", 1, cudaErrorUnknown, fake_cuda::Repeat::kFromThenOn);
  const CudaStatus status = cuda_status();
  fake_cuda::stop_failing();
  dlclose(stub);
  ASSERT_EQ(status.gpus.size(), 3U);
  for (const CudaGpu& gpu : status.gpus) {
    EXPECT_EQ(gpu.free_bytes, std::int64_t{gpu.ordinal + 1} << 30) << gpu.ordinal;
  }
}

}  // namespace
}  // namespace tessera
