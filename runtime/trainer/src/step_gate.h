#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tessera {

/// How rank 0 tells the other ranks after each step whether there is another one. They wait here
/// and not in a collective, so that a slow callback uses up nobody's timeout and sends no bytes.
class StepGate {
 public:
  /// Rank 0: step `step` is done, and training goes on or not.
  void publish(std::int64_t step, bool go_on);
  /// Lets every waiter go at once, because a rank has failed.
  void cancel();
  /// Blocks until `step` is published; returns whether training goes on.
  /// Throws Error{kAborted} after cancel.
  bool wait(std::int64_t step);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t published_ = -1;
  bool go_on_ = true;
  bool cancelled_ = false;
};

}  // namespace tessera
