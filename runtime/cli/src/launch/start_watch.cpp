#include "launch/start_watch.h"

#include <unistd.h>

#include <iostream>
#include <utility>

#include "commands.h"
#include "terminal.h"
#include "tessera/core/start_thread.h"

namespace tessera::cli {

StartWatch::StartWatch(std::chrono::milliseconds patience, std::string error)
    : patience_(patience),
      error_(std::move(error)),
      watcher_(start_thread("the watch over the start", [this] { watch(); })) {}

StartWatch::~StartWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void StartWatch::watch() {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, patience_, [this] { return over_; })) return;
  std::cerr << "tessera: " << paint(inspect(stderr), Colour::kRed, "error:") << " " << error_
            << std::endl;
  _exit(kExitRunTime);  // the thread that is stuck cannot unwind
}

}  // namespace tessera::cli
