#include "run/work_watch.h"

#include <chrono>

#include "run/interrupt.h"

namespace tessera::cli {
namespace {}  // namespace

std::shared_ptr<HostWork> interruptible_work() {
  return std::make_shared<HostWork>([] { return received_signal() != 0; });
}

bool is_ended_start(const Error& error, const HostWork& work) {
  return error.code() == ErrorCode::kAborted && received_signal() != 0 && work.is_starting();
}

WorkWatch::WorkWatch(const HostWork& work, Progress& progress)
    : Watcher("the progress of work", [&](const std::stop_token& over) {
        while (sleeps(over, kInterval)) progress.work(work, Progress::Clock::now());
        progress.work(work, Progress::Clock::now());
      }) {}

}  // namespace tessera::cli
