#include "tessera/core/sim_device.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

class SimEvent : public Event::State {
 public:
  explicit SimEvent(double seconds) : seconds_(seconds) {}
  double seconds() const { return seconds_; }
  void synchronize() override {}

 private:
  double seconds_;
};

}  // namespace

/// Runs tasks where they are submitted and keeps the time that they would have taken.
class SimStream : public Stream {
 public:
  SimStream(SimDevice& device, StreamOptions options)
      : device_(device), options_(std::move(options)) {}

  void submit(const Work& work, std::function<void()> task) override {
    if (failure_) return;
    try {
      if (options_.before_task) options_.before_task();
      if (task) task();
    } catch (const std::exception& error) {
      fail_with(error.what());
      return;
    } catch (...) {
      fail_with("unknown exception");
      return;
    }
    const double begin = clock_;
    clock_ += work.seconds;
    device_.spans_.push_back({options_.name, std::string(work.name), work.action, begin, clock_});
    if (options_.on_span) options_.on_span(work, begin, clock_);
  }

  Event record() override { return Event(std::make_shared<SimEvent>(clock_)); }

  void wait(const Event& event) override {
    if (event.state() == nullptr) return;
    const auto* sim_event = dynamic_cast<const SimEvent*>(event.state().get());
    require(sim_event != nullptr, ErrorCode::kInvalidArgument, "sim stream '", options_.name,
            "' cannot wait for an event of another kind of device");
    clock_ = std::max(clock_, sim_event->seconds());
  }

  /// There is nothing to copy, from or to.
  void copy(void* /*destination*/, const void* /*source*/, std::size_t /*bytes*/) override {}

  void synchronize() override {
    if (failure_) std::rethrow_exception(failure_);
  }

  bool failed() const override { return failure_ != nullptr; }

 private:
  void fail_with(std::string_view what) {
    failure_ = std::current_exception();
    if (options_.on_error) options_.on_error(what);
  }

  SimDevice& device_;
  const StreamOptions options_;
  double clock_ = 0.0;
  std::exception_ptr failure_;
};

SimDevice::SimDevice(DeviceKind stands_for)
    : has_pool_(stands_for == DeviceKind::kCuda), pool_([this](std::size_t wanted, std::size_t) {
        next_address_ += wanted;
        return SegmentPool::Segment{.address = next_address_ - wanted, .bytes = wanted};
      }) {}

void* SimDevice::allocate(std::size_t bytes) {
  if (has_pool_) return reinterpret_cast<void*>(pool_.allocate(bytes));
  // Addresses are never given out twice, so a stale one cannot be mistaken for a live one.
  const std::uintptr_t address = next_address_;
  next_address_ += std::max<std::size_t>((bytes + 63) / 64 * 64, 64);
  return reinterpret_cast<void*>(address);
}

void SimDevice::deallocate(void* address, std::size_t /*bytes*/) noexcept {
  if (has_pool_) pool_.deallocate(reinterpret_cast<SegmentPool::Address>(address));
}

void* SimDevice::allocate_host(std::size_t bytes) {
  void* const address = std::calloc(std::max<std::size_t>(bytes, 1), 1);
  require(address != nullptr, ErrorCode::kOutOfMemory, "cannot allocate ", bytes,
          " bytes of host memory");
  return address;
}

void SimDevice::deallocate_host(void* address, std::size_t /*bytes*/) noexcept {
  std::free(address);
}

std::unique_ptr<Stream> SimDevice::create_stream(StreamOptions options) {
  return std::make_unique<SimStream>(*this, std::move(options));
}

}  // namespace tessera
