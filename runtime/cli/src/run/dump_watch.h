#pragma once

#include <memory>

#include "run/interrupt.h"
#include "run/watcher.h"
#include "tessera/compat/config.h"
#include "tessera/lab/dump_requests.h"

namespace tessera::cli {

/// While one lives, SIGQUIT has the run write what its ranks do, and the run goes on.
class DumpWatch {
 public:
  DumpWatch();

  /// The requests, for TrainerOptions of the run that serves them.
  const std::shared_ptr<DumpRequests>& requests() const { return requests_; }

 private:
  void watch(const std::stop_token& over);

  const QuitGuard quits_;
  const std::shared_ptr<DumpRequests> requests_;
  const Watcher watcher_;  ///< last: it uses the others
};

/// Dumps lie, by default, beside the log. To be called where the configuration still names it: only
/// one process of a run writes a log.
void choose_dump_folder(Config& config);

}  // namespace tessera::cli
