#include "tessera/core/sim_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "sim_clock.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// Runs tasks where they are submitted, and leaves it to the clock when they would have run.
class QueuedStream : public SimStream {
 public:
  QueuedStream(std::shared_ptr<sim::Clock> clock, std::shared_ptr<sim::Queue> queue)
      : clock_(std::move(clock)), queue_(std::move(queue)) {}
  QueuedStream(const QueuedStream&) = delete;
  QueuedStream& operator=(const QueuedStream&) = delete;
  /// Nobody is told of what runs later.
  ~QueuedStream() override { queue_->has_stream = false; }

  void submit(const Work& work, std::function<void()> task) override {
    refuse_own_task("submit");
    if (failure_) return;
    try {
      if (queue_->options.before_task) queue_->options.before_task();
      const Running running(in_task_);
      if (task) task();
    } catch (const std::exception& error) {
      fail_with(error.what());
      return;
    } catch (...) {
      fail_with("unknown exception");
      return;
    }
    queue_->items.push_back({.work = work, .name = std::string(work.name)});
  }

  Event record() override {
    auto moment = std::make_shared<sim::Moment>(clock_);
    push_arrival(moment);
    return Event(std::move(moment));
  }

  void wait(const Event& event) override {
    if (event.state() == nullptr) return;
    queue_->items.push_back(
        {.kind = sim::Item::Kind::kWait, .moment = moment_of(event, "wait for")});
  }

  Event announce(int arrivals, std::function<Error()> overdue) override {
    require(arrivals > 0 && overdue != nullptr, ErrorCode::kInvalidArgument, "an event of ",
            arrivals, " arrivals cannot be announced, nor one that has no error");
    auto moment = std::make_shared<sim::Moment>(clock_);
    moment->to_submit = moment->to_come = arrivals;
    moment->overdue = std::move(overdue);
    return Event(std::move(moment));
  }

  void arrive(const Event& announced) override {
    refuse_own_task("arrive");
    auto moment = moment_of(announced, "arrive at");
    require(moment->to_submit > 0, ErrorCode::kInvalidArgument, "sim stream '",
            queue_->options.name, "' cannot arrive at an event once more than was announced");
    push_arrival(std::move(moment));
  }

  /// There is nothing to copy, from or to.
  void copy(void* /*destination*/, const void* /*source*/, std::size_t /*bytes*/) override {}

  void synchronize() override {
    clock_->run();
    if (failure_) std::rethrow_exception(failure_);
    if (!queue_->items.empty()) throw clock_->explain(*queue_);
  }

  bool failed() const override { return failure_ != nullptr; }

 private:
  /// Sets a flag while it lives.
  class Running {
   public:
    explicit Running(bool& flag) : flag_(flag) { flag_ = true; }
    ~Running() { flag_ = false; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    bool& flag_;
  };

  /// On a CPU it would run after tasks that need its result, and here there is no memory.
  void refuse_own_task(const char* call) const {
    require(
        !in_task_, ErrorCode::kInvalidArgument, "Stream::", call,
        " was called by a task of the same stream, '", queue_->options.name,
        "', while a run is planned: compute at once, in the calling thread, and only if "
        "Device::kind() is not DeviceKind::kSim (an operation of your own runs inside of such a "
        "task)");
  }

  void push_arrival(std::shared_ptr<sim::Moment> moment) {
    --moment->to_submit;
    queue_->items.push_back({.kind = sim::Item::Kind::kArrive, .moment = std::move(moment)});
  }

  std::shared_ptr<sim::Moment> moment_of(const Event& event, const char* what_to_do) const {
    auto moment = std::dynamic_pointer_cast<sim::Moment>(event.state());
    require(moment != nullptr, ErrorCode::kInvalidArgument, "sim stream '", queue_->options.name,
            "' cannot ", what_to_do, " an event of another kind of device");
    require(moment->clock.lock() == clock_, ErrorCode::kInvalidArgument, "sim stream '",
            queue_->options.name, "' cannot ", what_to_do,
            " an event of a device with another clock; make one SimDevice beside the other");
    return moment;
  }

  void fail_with(std::string_view what) {
    failure_ = std::current_exception();
    if (queue_->options.on_error) queue_->options.on_error(what);
  }

  const std::shared_ptr<sim::Clock> clock_;
  const std::shared_ptr<sim::Queue> queue_;
  std::exception_ptr failure_;
  bool in_task_ = false;
};

}  // namespace

SimDevice::SimDevice(DeviceKind stands_for, SimSpeeds speeds)
    : SimDevice(stands_for, std::move(speeds), std::make_shared<sim::Clock>()) {}

SimDevice::SimDevice(DeviceKind stands_for, SimSpeeds speeds, const SimDevice& beside)
    : SimDevice(stands_for, std::move(speeds), beside.clock_) {}

SimDevice::SimDevice(DeviceKind stands_for, SimSpeeds speeds, std::shared_ptr<sim::Clock> clock)
    : has_pool_(stands_for == DeviceKind::kCuda),
      pool_([this](std::size_t wanted, std::size_t) {
        next_address_ += wanted;
        return SegmentPool::Segment{.address = next_address_ - wanted, .bytes = wanted};
      }),
      clock_(std::move(clock)),
      timeline_(std::make_shared<sim::Timeline>(sim::Timeline{.speeds = std::move(speeds)})) {
  clock_->add(timeline_);
}

SimDevice::~SimDevice() { timeline_->has_device = false; }

const std::vector<SimSpan>& SimDevice::spans() const { return timeline_->spans; }

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

/// Real memory, of which only what is touched is taken: a simulated state is not.
void* SimDevice::allocate_host(std::size_t bytes) {
  void* const address = mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(address != MAP_FAILED, ErrorCode::kOutOfMemory, "cannot reserve ", bytes,
          " bytes of host memory: ", std::strerror(errno));
  return address;
}

void SimDevice::deallocate_host(void* address, std::size_t bytes) noexcept {
  munmap(address, std::max<std::size_t>(bytes, 1));
}

std::unique_ptr<Stream> SimDevice::create_stream(StreamOptions options) {
  auto queue = std::make_shared<sim::Queue>(sim::Queue{.options = std::move(options)});
  timeline_->queues.push_back(queue);
  return std::make_unique<QueuedStream>(clock_, std::move(queue));
}

}  // namespace tessera
