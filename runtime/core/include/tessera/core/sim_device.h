#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
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

/// How fast tasks of several streams are while they run at the same time: sets the virtual seconds
/// of Work::seconds that each gets done in a second, above 0. Without it, all are as fast as alone.
using SimSpeeds = std::function<void(std::span<const Work> running, std::span<double> speeds)>;

/// A device with a virtual clock: memory is counted and not made, tasks take the seconds that they
/// were submitted with, or longer while others disturb them. A task begins when those before it on
/// its stream and the events that it waits for are over. When that was is known once a stream is
/// synchronized: all work submitted until then has run, and has been reported by
/// StreamOptions::on_span, in the order of its ends. Not thread-safe: one host thread drives one
/// SimDevice.
class SimDevice : public Device {
 public:
  /// `stands_for`: kCuda: memory is counted out as the pool of a GPU does, which reuses addresses.
  explicit SimDevice(DeviceKind stands_for = DeviceKind::kCpu, SimSpeeds speeds = {});
  ~SimDevice() override;

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

  /// When each task ran that has, in the order of their ends.
  const std::vector<SimSpan>& spans() const { return spans_; }

 private:
  friend class SimStream;
  class Clock;
  const bool has_pool_;
  std::uintptr_t next_address_ = 1U << 20U;
  SegmentPool pool_;
  std::vector<SimSpan> spans_;
  std::unique_ptr<Clock> clock_;
};

}  // namespace tessera
