#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include "tessera/core/start_thread.h"

namespace tessera::cli {

/// How often a watcher looks.
inline constexpr std::chrono::milliseconds kInterval{100};

/// Sleeps for so long, or until a watcher ends; true if it goes on.
inline bool sleeps(const std::stop_token& over, std::chrono::milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, over, time, [] { return false; });
  return !over.stop_requested();
}

/// A thread that watches something while this lives: its body returns once it is over.
class Watcher {
 public:
  /// `what` as for start_thread().
  Watcher(std::string_view what, std::function<void(std::stop_token over)> body)
      : thread_(start_thread(what,
                             [body = std::move(body), over = stop_.get_token()] { body(over); })) {}
  ~Watcher() {
    stop_.request_stop();
    thread_.join();
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  std::stop_source stop_;
  std::thread thread_;
};

}  // namespace tessera::cli
