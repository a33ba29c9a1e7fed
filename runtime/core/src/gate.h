#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tessera/core/device.h"

namespace tessera {

/// The CPU device's event: closed until opened once, then open for ever.
class Gate : public Event::State {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_.store(true, std::memory_order_release);
    }
    opened_.notify_all();
  }

  void synchronize() override { pass(); }

  void pass() {
    // A few yields catch a gate that is about to open; more would take the core from the very
    // thread that is to open it.
    for (int i = 0; i < kYields; ++i) {
      if (open_.load(std::memory_order_acquire)) return;
      std::this_thread::yield();
    }
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return open_.load(std::memory_order_relaxed); });
  }

 private:
  static constexpr int kYields = 8;
  std::mutex mutex_;
  std::condition_variable opened_;
  std::atomic<bool> open_{false};
};

}  // namespace tessera
