#pragma once

#include <algorithm>
#include <chrono>

namespace tessera {

/// A limit after which a caller gives up.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds patience)
      : end_(std::chrono::steady_clock::now() + patience) {}
  /// The time left as poll() takes it.
  int milliseconds_left() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                          end_ - std::chrono::steady_clock::now())
                          .count();
    return static_cast<int>(std::max<long long>(left, 0));
  }
  bool over() const { return milliseconds_left() == 0; }

 private:
  std::chrono::steady_clock::time_point end_;
};

}  // namespace tessera
