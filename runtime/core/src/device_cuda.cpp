#include <chrono>
#include <memory>

#include "check_cuda.h"
#include "cuda_backend.h"
#include "memory_pool_cuda.h"
#include "pinned_pool_cuda.h"
#include "status_cuda.h"
#include "stream_cuda.h"

// The kernels in this module export these.
extern "C" const tessera::KernelTable* tessera_cuda_kernels();
extern "C" void tessera_cuda_probe();

namespace tessera::cuda {
namespace {

class DeviceCuda : public CudaDevice {
 public:
  explicit DeviceCuda(const CudaDeviceOptions& options)
      : pool_(options.ordinal, options.segments), pinned_(options.pinned_bytes, options.host_work) {
    state_.ordinal = options.ordinal;
    state_.nvtx = options.nvtx;
    state_.kernels = tessera_cuda_kernels();
    TESSERA_CUDA_CHECK(cudaSetDevice(options.ordinal));
    probe();
    set_epoch();
  }
  ~DeviceCuda() override { static_cast<void>(cudaEventDestroy(state_.epoch)); }

  void* allocate(std::size_t bytes) override { return pool_.allocate(bytes); }
  void deallocate(void* address, std::size_t /*bytes*/) noexcept override {
    pool_.deallocate(address);
  }
  void* allocate_host(std::size_t bytes) override { return pinned_.allocate(bytes); }
  void deallocate_host(void* address, std::size_t /*bytes*/) noexcept override {
    pinned_.deallocate(address);
  }
  std::unique_ptr<Stream> create_stream(StreamOptions options) override {
    return std::make_unique<StreamCuda>(state_, std::move(options));
  }
  const KernelTable& kernels() const override { return *state_.kernels; }
  int ordinal() const override { return state_.ordinal; }
  std::int64_t reserved_bytes() const override { return pool_.reserved_bytes(); }
  std::int64_t host_waits() const override { return state_.host_waits + pool_.growths(); }

 private:
  /// A GPU that this build has no code for would fail at its first kernel, in the middle of a step.
  void probe() const {
    try {
      tessera_cuda_probe();
    } catch (const Error& error) {
      cudaDeviceProp properties{};
      TESSERA_CUDA_CHECK(cudaGetDeviceProperties(&properties, state_.ordinal));
      fail(ErrorCode::kUnavailable, "GPU ", state_.ordinal, " (", properties.name,
           ", compute capability ", properties.major, ".", properties.minor,
           ") does not run this build's kernels: ", error.what(),
           "; build with -DTESSERA_CUDA_ARCHITECTURES=", properties.major, properties.minor,
           ", or use `device` cpu");
    }
  }
  /// Ties CUDA's clock, which only knows differences, to the host's.
  void set_epoch() {
    TESSERA_CUDA_CHECK(cudaEventCreateWithFlags(&state_.epoch, cudaEventDefault));
    TESSERA_CUDA_CHECK(cudaEventRecord(state_.epoch, nullptr));
    TESSERA_CUDA_CHECK(cudaEventSynchronize(state_.epoch));
    state_.epoch_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  DeviceState state_;
  MemoryPool pool_;
  PinnedPool pinned_;
};

}  // namespace
}  // namespace tessera::cuda

extern "C" __attribute__((visibility("default"))) tessera::CudaDevice* tessera_cuda_make_device(
    const tessera::CudaDeviceOptions& options) {
  using tessera::ErrorCode;
  tessera::CudaStatus status;
  tessera::cuda::fill_status(status);
  tessera::require(status.usable(), ErrorCode::kUnavailable, status.problem);
  tessera::require(options.ordinal >= 0 && options.ordinal < static_cast<int>(status.gpus.size()),
                   ErrorCode::kUnavailable, "there is no GPU ", options.ordinal, ": ",
                   status.gpus.size(),
                   " can be seen (CUDA_VISIBLE_DEVICES may hide some); see 'tessera gpu-info'");
  return std::make_unique<tessera::cuda::DeviceCuda>(options).release();
}
