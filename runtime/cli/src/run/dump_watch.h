#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "run/interrupt.h"
#include "tessera/compat/config.h"
#include "tessera/lab/dump_requests.h"

namespace tessera::cli {

/// While one lives, SIGQUIT has the run write what its ranks do, and the run goes on.
class DumpWatch {
 public:
  DumpWatch();
  ~DumpWatch();
  DumpWatch(const DumpWatch&) = delete;
  DumpWatch& operator=(const DumpWatch&) = delete;

  /// What a run with such options needs to serve it.
  const std::shared_ptr<DumpRequests>& requests() const { return requests_; }

 private:
  void watch();

  const QuitGuard quits_;
  const std::shared_ptr<DumpRequests> requests_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread watcher_;
};

/// Dumps lie, by default, beside the log. To be called where the configuration still names it: only
/// one process of a run writes a log.
void choose_dump_folder(Config& config);

}  // namespace tessera::cli
