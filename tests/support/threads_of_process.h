#pragma once

#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

namespace tessera::test {

inline int threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

/// Whether there come to be no more than `most` within a few seconds.
inline bool process_has_threads(int most) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (threads_of_process() > most) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace tessera::test
