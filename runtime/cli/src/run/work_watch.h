#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "run/progress.h"
#include "tessera/core/error.h"
#include "tessera/core/host_work.h"

namespace tessera::cli {

/// For TrainerOptions::host_work: what an InterruptGuard remembers ends it before the first step.
std::shared_ptr<HostWork> interruptible_work();

/// True of an error by which a signal has ended a run before its first step, here or in another
/// process that has had it, too.
bool is_ended_start(const Error& error, const HostWork& work);

/// While one lives, it shows how far the work is.
class WorkWatch {
 public:
  /// Both must outlive it.
  WorkWatch(const HostWork& work, Progress& progress);
  ~WorkWatch();
  WorkWatch(const WorkWatch&) = delete;
  WorkWatch& operator=(const WorkWatch&) = delete;

 private:
  void watch();

  const HostWork& work_;
  Progress& progress_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread watcher_;  ///< last: it uses the others
};

}  // namespace tessera::cli
