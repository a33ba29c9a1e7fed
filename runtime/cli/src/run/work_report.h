#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/host_work.h"

namespace tessera::cli {

/// The progress of work that the host does outside of steps. Work of less than a second is not
/// shown; then a person who watches sees how far it is whenever it is asked for, and a file has a
/// line at once, one every ten seconds and one at its end.
class WorkReport {
 public:
  using Clock = std::chrono::steady_clock;
  explicit WorkReport(bool is_watched) : is_watched_(is_watched) {}

  struct Shown {
    std::string text{};
    double share = 0.0;    ///< that is done
    bool is_over = false;  ///< nothing of it is to be seen any more by who watches
  };
  /// The news at a time, at which the work is so far.
  std::vector<Shown> at(const HostWork& work, Clock::time_point now);

 private:
  double seconds_at(Clock::time_point now) const {
    return std::chrono::duration<double>(now - began_).count();
  }

  const bool is_watched_;
  std::optional<HostWork::Extent> seen_{};
  Clock::time_point began_{};
  Clock::time_point told_{};
  bool is_told_ = false;
};

}  // namespace tessera::cli
