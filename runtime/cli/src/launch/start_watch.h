#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace tessera::cli {

/// Ends this process with an error if it still lives when the time is over: for what waits for
/// other processes and cannot be called off, as the start of MPI.
class StartWatch {
 public:
  StartWatch(std::chrono::milliseconds patience, std::string error);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  void watch();

  const std::chrono::milliseconds patience_;
  const std::string error_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread watcher_;
};

}  // namespace tessera::cli
