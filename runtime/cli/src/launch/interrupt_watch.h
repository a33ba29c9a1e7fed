#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "interrupt.h"
#include "tessera/collectives/world.h"

namespace tessera::cli {

/// For a process that a run cannot be stopped in, since process 0 decides when it ends: while one
/// lives, a signal that this process gets and process 0 does not act on aborts the run.
class InterruptWatch {
 public:
  /// Does nothing if `world` is null or this is process 0. Both must outlive it.
  InterruptWatch(const InterruptGuard& interrupt, const World* world);
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  void watch();

  const InterruptGuard& interrupt_;
  const World* const world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread watcher_{};
};

}  // namespace tessera::cli
