#include "tessera/core/cpu_device.h"

#include <memory>
#include <utility>

#include "cpu_stream.h"
#include "host_memory_pool.h"

namespace tessera {
namespace {

class CpuDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  void* allocate(std::size_t bytes) override { return pool_.allocate(bytes); }
  void deallocate(void* address, std::size_t bytes) noexcept override {
    pool_.deallocate(address, bytes);
  }
  bool host_accessible() const override { return true; }
  void* allocate_host(std::size_t bytes) override { return pool_.allocate(bytes); }
  void deallocate_host(void* address, std::size_t bytes) noexcept override {
    pool_.deallocate(address, bytes);
  }
  std::unique_ptr<Stream> create_stream(StreamOptions options) override {
    return std::make_unique<CpuStream>(std::move(options));
  }

 private:
  HostMemoryPool pool_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace tessera
