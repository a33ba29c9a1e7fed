#include "step_gate.h"

#include "tessera/core/error.h"

namespace tessera {

void StepGate::publish(std::int64_t step, bool go_on) {
  {
    std::lock_guard lock(mutex_);
    published_ = step;
    go_on_ = go_on;
  }
  changed_.notify_all();
}

void StepGate::cancel() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  changed_.notify_all();
}

bool StepGate::wait(std::int64_t step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return cancelled_ || published_ >= step; });
  require(!cancelled_, ErrorCode::kAborted, "another rank failed");
  return go_on_;
}

}  // namespace tessera
