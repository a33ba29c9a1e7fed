#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/device.h"
#include "tessera/core/segment_pool.h"

namespace tessera {

/// One task of a simulated stream, in virtual seconds.
struct SimSpan {
  std::string stream;
  std::string name;
  int action = -1;
  double begin = 0.0;
  double end = 0.0;
};

/// A device with virtual clocks: memory is counted and not made, tasks take the seconds that they
/// were submitted with. Every stream has its own clock; waiting for an event moves it forward.
/// Not thread-safe: one host thread drives one SimDevice.
class SimDevice : public Device {
 public:
  /// `stands_for`: kCuda: memory is counted out as the pool of a GPU does, which reuses addresses.
  explicit SimDevice(DeviceKind stands_for = DeviceKind::kCpu);

  DeviceKind kind() const override { return DeviceKind::kSim; }
  void* allocate(std::size_t bytes) override;
  void deallocate(void* address, std::size_t bytes) noexcept override;
  bool host_accessible() const override { return false; }
  /// Real memory, zeroed: what a copy from the device would have written stays zero.
  void* allocate_host(std::size_t bytes) override;
  void deallocate_host(void* address, std::size_t bytes) noexcept override;
  std::unique_ptr<Stream> create_stream(StreamOptions options) override;

  /// CudaDevice::reserved_bytes of a GPU that was asked the same; 0 for other devices.
  std::int64_t reserved_bytes() const { return pool_.reserved_bytes(); }

  /// When each task ran, in the order of submission.
  const std::vector<SimSpan>& spans() const { return spans_; }

 private:
  friend class SimStream;
  const bool has_pool_;
  std::uintptr_t next_address_ = 1U << 20U;
  SegmentPool pool_;
  std::vector<SimSpan> spans_;
};

}  // namespace tessera
