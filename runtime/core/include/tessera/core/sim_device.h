#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/core/device.h"
#include "tessera/core/error.h"
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

/// How fast tasks of several streams of a device are while they run at the same time: sets the
/// virtual seconds of Work::seconds that each gets done in a second, above 0, by nothing but which
/// tasks run. Without it, all are as fast as alone.
using SimSpeeds = std::function<void(std::span<const Work> running, std::span<double> speeds)>;

namespace sim {
class Clock;
struct Timeline;
}  // namespace sim

/// A queue of a SimDevice.
class SimStream : public Stream {
 public:
  // Events at which several streams of a clock arrive, and which may be waited for before that.
  /// An event that is over once streams of this clock have arrived at it `arrivals` times. While
  /// arrivals have not been submitted, `overdue` makes the Error of a stream that was synchronized
  /// and waits in vain.
  virtual Event announce(int arrivals, std::function<Error()> overdue) = 0;
  /// Arrives when everything submitted so far has run.
  virtual void arrive(const Event& announced) = 0;
};

/// A device with a virtual clock: memory is counted and not made, tasks take the seconds that they
/// were submitted with, or longer while others of the device disturb them. A task begins when those
/// before it on its stream and the events that it waits for are over. When that was is known once a
/// stream is synchronized: all work submitted until then has run, and has been reported by
/// StreamOptions::on_span, in the order of its ends. Not thread-safe: one host thread drives all
/// devices of a clock.
///
/// Simulated ranks have a device each, on one clock: a stream may wait for events of all of them.
/// To synchronize a stream of one runs the queues of all, so work of one rank that is submitted
/// after another one was synchronized begins no earlier than where the clock stands. A stream that
/// cannot get to its end, since it waits for an arrival that nobody has submitted or since streams
/// wait for each other, is synchronized with the Error of SimStream::announce or Error{kTimeout}:
/// the text follows the waits. Nothing is lost then: submit what is missing and synchronize again.
class SimDevice : public Device {
 public:
  /// `stands_for`: kCuda: memory is counted out as the pool of a GPU does, which reuses addresses.
  explicit SimDevice(DeviceKind stands_for = DeviceKind::kCpu, SimSpeeds speeds = {});
  /// On the clock of `beside`, which may be destroyed earlier or later. `speeds` is about the
  /// streams of this device.
  SimDevice(DeviceKind stands_for, SimSpeeds speeds, const SimDevice& beside);
  /// Streams may outlive it, and what was submitted to them still runs, as fast as alone.
  ~SimDevice() override;

  DeviceKind kind() const override { return DeviceKind::kSim; }
  void* allocate(std::size_t bytes) override;
  void deallocate(void* address, std::size_t bytes) noexcept override;
  bool host_accessible() const override { return false; }
  /// Real memory, zeroed: what a copy from the device would have written stays zero.
  void* allocate_host(std::size_t bytes) override;
  void deallocate_host(void* address, std::size_t bytes) noexcept override;
  /// Returns a SimStream.
  std::unique_ptr<Stream> create_stream(StreamOptions options) override;

  /// CudaDevice::reserved_bytes of a GPU that was asked the same; 0 for other devices.
  std::int64_t reserved_bytes() const { return pool_.reserved_bytes(); }

  /// When each task of this device ran that has, in the order of their ends.
  const std::vector<SimSpan>& spans() const;

 private:
  SimDevice(DeviceKind stands_for, SimSpeeds speeds, std::shared_ptr<sim::Clock> clock);

  const bool has_pool_;
  std::uintptr_t next_address_ = 1U << 20U;
  SegmentPool pool_;
  const std::shared_ptr<sim::Clock> clock_;
  const std::shared_ptr<sim::Timeline> timeline_;
};

}  // namespace tessera
