#include "tessera/core/sim_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace sim {

class Moment : public Event::State {
 public:
  void synchronize() override {}
  bool is_over = false;
};

/// What a stream has to do next: a task, an event to wait for, or one to record.
struct Item {
  enum class Kind : std::uint8_t { kTask, kWait, kRecord } kind = Kind::kTask;
  Work work{};
  std::shared_ptr<Moment> event{};
};

/// A stream's queue, which outlives it: work that was submitted runs.
struct Queue {
  StreamOptions options;
  std::deque<Item> items{};
  bool runs = false;  ///< the task at the front does, since `begin`
  double begin = 0.0;
  double speed = 1.0;
  double end = 0.0;  ///< if its speed stays
};

}  // namespace sim

/// Runs the queues of all streams side by side, from one begin or end of a task to the next.
class SimDevice::Clock {
 public:
  Clock(SimSpeeds speeds, std::vector<SimSpan>& spans)
      : speeds_(std::move(speeds)), spans_(spans) {}

  sim::Queue& add(StreamOptions options) {
    return *queues_.emplace_back(
        std::make_unique<sim::Queue>(sim::Queue{.options = std::move(options)}));
  }

  void run() {
    for (;;) {
      while (settle()) {
      }
      if (!advance()) return;
    }
  }

 private:
  /// Does all that takes no time; false if there was nothing.
  bool settle() {
    bool did = false;
    for (const auto& queue : queues_) {
      while (!queue->items.empty() && settle_first(*queue)) did = true;
    }
    return did;
  }

  bool settle_first(sim::Queue& queue) {
    sim::Item& item = queue.items.front();
    if (item.kind == sim::Item::Kind::kWait && !item.event->is_over) return false;
    if (item.kind == sim::Item::Kind::kRecord) item.event->is_over = true;
    if (item.kind == sim::Item::Kind::kTask) {
      if (!queue.runs) {
        queue.runs = true;
        queue.begin = now_;
        queue.speed = 1.0;
        queue.end = now_ + item.work.seconds;
      }
      if (queue.end > now_) return false;
      report(queue, item.work);
    }
    queue.items.pop_front();
    return true;
  }

  void report(sim::Queue& queue, const Work& work) {
    spans_.push_back({queue.options.name, std::string(work.name), work.action, queue.begin, now_});
    queue.runs = false;
    if (queue.options.on_span) queue.options.on_span(work, queue.begin, now_);
  }

  /// To the first end of a task that runs; false if none does.
  bool advance() {
    std::vector<sim::Queue*> running;
    for (const auto& queue : queues_) {
      if (queue->runs) running.push_back(queue.get());
    }
    if (running.empty()) return false;
    if (speeds_) set_speeds(running);
    now_ = (*std::ranges::min_element(running, {}, &sim::Queue::end))->end;
    return true;
  }

  void set_speeds(const std::vector<sim::Queue*>& running) {
    std::vector<Work> works;
    for (const sim::Queue* queue : running) works.push_back(queue->items.front().work);
    std::vector<double> speeds(running.size(), 1.0);
    speeds_(works, speeds);
    for (std::size_t i = 0; i < running.size(); ++i) {
      sim::Queue& queue = *running[i];
      if (speeds[i] == queue.speed) continue;  // so that nothing is rounded again
      queue.end = now_ + (queue.end - now_) * queue.speed / speeds[i];
      queue.speed = speeds[i];
    }
  }

  const SimSpeeds speeds_;
  std::vector<SimSpan>& spans_;
  std::vector<std::unique_ptr<sim::Queue>> queues_;
  double now_ = 0.0;
};

/// Runs tasks where they are submitted, and leaves it to the clock when they would have run.
class SimStream : public Stream {
 public:
  SimStream(SimDevice& device, StreamOptions options)
      : device_(device), queue_(device.clock_->add(std::move(options))) {}

  void submit(const Work& work, std::function<void()> task) override {
    // On a CPU it would run after tasks that need its result, and here there is no memory.
    require(
        !in_task_, ErrorCode::kInvalidArgument,
        "Stream::submit was called by a task of the same stream, '", queue_.options.name,
        "', while a run is planned: compute at once, in the calling thread, and only if "
        "Device::kind() is not DeviceKind::kSim (an operation of your own runs inside of such a "
        "task)");
    if (failure_) return;
    try {
      if (queue_.options.before_task) queue_.options.before_task();
      const Running running(in_task_);
      if (task) task();
    } catch (const std::exception& error) {
      fail_with(error.what());
      return;
    } catch (...) {
      fail_with("unknown exception");
      return;
    }
    queue_.items.push_back({.work = work});
  }

  Event record() override {
    auto event = std::make_shared<sim::Moment>();
    queue_.items.push_back({.kind = sim::Item::Kind::kRecord, .event = event});
    return Event(std::move(event));
  }

  void wait(const Event& event) override {
    if (event.state() == nullptr) return;
    auto moment = std::dynamic_pointer_cast<sim::Moment>(event.state());
    require(moment != nullptr, ErrorCode::kInvalidArgument, "sim stream '", queue_.options.name,
            "' cannot wait for an event of another kind of device");
    queue_.items.push_back({.kind = sim::Item::Kind::kWait, .event = std::move(moment)});
  }

  /// There is nothing to copy, from or to.
  void copy(void* /*destination*/, const void* /*source*/, std::size_t /*bytes*/) override {}

  void synchronize() override {
    device_.clock_->run();
    if (failure_) std::rethrow_exception(failure_);
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

  void fail_with(std::string_view what) {
    failure_ = std::current_exception();
    if (queue_.options.on_error) queue_.options.on_error(what);
  }

  SimDevice& device_;
  sim::Queue& queue_;
  std::exception_ptr failure_;
  bool in_task_ = false;
};

SimDevice::SimDevice(DeviceKind stands_for, SimSpeeds speeds)
    : has_pool_(stands_for == DeviceKind::kCuda),
      pool_([this](std::size_t wanted, std::size_t) {
        next_address_ += wanted;
        return SegmentPool::Segment{.address = next_address_ - wanted, .bytes = wanted};
      }),
      clock_(std::make_unique<Clock>(std::move(speeds), spans_)) {}

SimDevice::~SimDevice() = default;

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
  return std::make_unique<SimStream>(*this, std::move(options));
}

}  // namespace tessera
