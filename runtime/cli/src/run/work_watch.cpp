#include "run/work_watch.h"

#include <chrono>

#include "run/interrupt.h"
#include "tessera/core/start_thread.h"

namespace tessera::cli {
namespace {

constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

std::shared_ptr<HostWork> interruptible_work() {
  return std::make_shared<HostWork>([] { return received_signal() != 0; });
}

bool is_ended_start(const Error& error, const HostWork& work) {
  return error.code() == ErrorCode::kAborted && received_signal() != 0 && work.is_starting();
}

WorkWatch::WorkWatch(const HostWork& work, Progress& progress)
    : work_(work),
      progress_(progress),
      watcher_(start_thread("the progress of work", [this] { watch(); })) {}

WorkWatch::~WorkWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  progress_.work(work_, Progress::Clock::now());
}

void WorkWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [this] { return over_; })) {
    progress_.work(work_, Progress::Clock::now());
  }
}

}  // namespace tessera::cli
