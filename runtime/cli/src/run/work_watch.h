#pragma once

#include <memory>

#include "run/progress.h"
#include "run/watcher.h"
#include "tessera/core/error.h"
#include "tessera/core/host_work.h"

namespace tessera::cli {

/// For TrainerOptions::host_work: what an InterruptGuard remembers ends it before the first step.
std::shared_ptr<HostWork> interruptible_work();

/// True of an error by which a signal has ended a run before its first step, here or in another
/// process that has had it, too.
bool is_ended_start(const Error& error, const HostWork& work);

/// While one lives, it shows how far the work is. Both must outlive it.
class WorkWatch : Watcher {
 public:
  WorkWatch(const HostWork& work, Progress& progress);
};

}  // namespace tessera::cli
