#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

namespace tessera::emulator {

/// Whose kernel runs next on a device that runs one at a time: Settings::one_kernel_at_a_time. Its
/// lock orders kernels in the eyes of ThreadSanitizer, which then finds no race between them.
class KernelTurns {
 public:
  /// Priority, then the number of the stream: the least goes first.
  using Key = std::pair<int, std::uint32_t>;

  /// A kernel's time on the device; of no effect if `turns` is null.
  class Turn {
   public:
    Turn(KernelTurns* turns, Key key) : turns_(turns) {
      if (turns_ != nullptr) turns_->begin(key);
    }
    ~Turn() {
      if (turns_ != nullptr) turns_->end();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    KernelTurns* turns_;
  };

  std::int64_t waiting() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(waiting_.size());
  }

 private:
  void begin(Key key) {
    std::unique_lock lock(mutex_);
    waiting_.insert(key);
    changed_.wait(lock, [&] { return !taken_ && *waiting_.begin() == key; });
    waiting_.erase(key);
    taken_ = true;
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      taken_ = false;
    }
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Key> waiting_;  // guarded by mutex_, as is the next
  bool taken_ = false;
};

}  // namespace tessera::emulator
