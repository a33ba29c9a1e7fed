#include "launch/interrupt_watch.h"

#include <chrono>
#include <cstring>
#include <string>

#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"

namespace tessera::cli {
namespace {

constexpr std::chrono::milliseconds kInterval{100};
/// How long process 0 may take to end the step and the run, if it has been signalled as well. The
/// run is over in 5 s, which takes all processes a moment.
constexpr std::chrono::seconds kPatience{4};
/// The same when it surely has been: a last checkpoint may take a while. Launchers kill what has
/// not ended earlier than this.
constexpr std::chrono::seconds kPatienceWithAll{600};

}  // namespace

InterruptWatch::InterruptWatch(const InterruptGuard& interrupt, const World* world)
    : interrupt_(interrupt), world_(world) {
  if (world == nullptr || world->process() == 0) return;
  watcher_ = start_thread("the watch for signals", [this] { watch(); });
}

InterruptWatch::~InterruptWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void InterruptWatch::watch() {
  std::unique_lock lock(mutex_);
  const auto over = [this] { return over_; };
  while (interrupt_.signal() == 0) {
    if (changed_.wait_for(lock, kInterval, over)) return;
  }
  if (changed_.wait_for(lock, interrupt_.reaches_all() ? kPatienceWithAll : kPatience, over)) {
    return;
  }
  const std::string reason =
      concat("process ", world_->process(), " was ended by SIG", sigabbrev_np(interrupt_.signal()));
  for (const auto& seat : world_->groups()) seat->abort(reason);
}

}  // namespace tessera::cli
