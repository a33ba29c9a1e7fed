#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace tessera {

/// Work of the host before the first step and after the last one that may take long.
enum class HostTask : std::uint8_t { kTouchPages, kInitialize, kLoad, kHash };
inline constexpr int kHostTasks = 4;

/// "initialising the training state", ...
const char* to_string(HostTask task);

/// How far a run is with such work, and whether it is to end before its first step. Ranks count
/// what they have done, other threads look. Thread-safe.
class HostWork {
 public:
  /// `stop_requested` is asked by any thread, often, until begin_steps(). Empty: never.
  explicit HostWork(std::function<bool()> stop_requested = {})
      : stop_requested_(std::move(stop_requested)) {}
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;

  /// There are `bytes` more to do. Those of all ranks add up.
  void begin(HostTask task, std::int64_t bytes);
  /// So many more are done. Throws Error{kAborted} if the run is to end.
  void advance(HostTask task, std::int64_t bytes);
  /// Steps ask by themselves whether the run is to end: advance() throws no more.
  void begin_steps() { starting_ = false; }
  bool is_starting() const { return starting_; }

  struct Extent {
    HostTask task{};
    std::int64_t done_bytes = 0;
    std::int64_t total_bytes = 0;
    double share() const {
      return total_bytes > 0 ? static_cast<double>(done_bytes) / static_cast<double>(total_bytes)
                             : 0.0;
    }
    bool operator==(const Extent&) const = default;
  };
  /// The first task that has begun and is not over; nothing between tasks, nor while steps run.
  std::optional<Extent> current() const;
  Extent of(HostTask task) const;

 private:
  struct Count {
    std::atomic<std::int64_t> done{0};
    std::atomic<std::int64_t> total{0};
  };
  const std::function<bool()> stop_requested_;
  std::array<Count, kHostTasks> counts_{};
  std::atomic<bool> starting_ = true;
};

/// Notes nothing if nobody watches.
inline void begin_work(HostWork* work, HostTask task, std::int64_t bytes) {
  if (work != nullptr) work->begin(task, bytes);
}
inline void advance_work(HostWork* work, HostTask task, std::int64_t bytes) {
  if (work != nullptr) work->advance(task, bytes);
}

}  // namespace tessera
