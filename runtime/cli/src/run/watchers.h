#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include "run/interrupt.h"
#include "run/progress.h"
#include "tessera/collectives/world.h"
#include "tessera/compat/config.h"
#include "tessera/core/error.h"
#include "tessera/core/host_work.h"
#include "tessera/core/start_thread.h"
#include "tessera/lab/dump_requests.h"

namespace tessera::cli {

/// How often a watcher looks.
inline constexpr std::chrono::milliseconds kInterval{100};

/// Sleeps for so long, or until a watcher ends; true if it goes on.
inline bool sleeps(const std::stop_token& over, std::chrono::milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, over, time, [] { return false; });
  return !over.stop_requested();
}

/// A thread that watches something while this lives: its body returns once it is over.
class Watcher {
 public:
  /// `what` as for start_thread().
  Watcher(std::string_view what, std::function<void(std::stop_token over)> body)
      : thread_(start_thread(what,
                             [body = std::move(body), over = stop_.get_token()] { body(over); })) {}
  ~Watcher() {
    stop_.request_stop();
    thread_.join();
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  std::stop_source stop_;
  std::thread thread_;
};

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

/// How long a run may take to end after a signal.
struct GraceOfRun {
  std::optional<std::chrono::seconds> grace{};  ///< unset: a launcher sees to it
  bool saves = false;                           ///< a last checkpoint takes its time
};

/// While one lives, a run that a signal has not ended in time is ended: by process 0, which decides
/// when it ends, with an error and exit code 128 + signal; by others, whose signal process 0 may
/// not have had, by aborting the groups.
class InterruptWatch {
 public:
  /// `world`: null for one process. It and `interrupt` must outlive the watch.
  InterruptWatch(const InterruptGuard& interrupt, const World* world, GraceOfRun limit);

 private:
  void watch(const std::stop_token& over) const;
  bool decides() const { return world_ == nullptr || world_->process() == 0; }
  std::optional<std::chrono::seconds> patience() const;
  void give_up() const;

  const InterruptGuard& interrupt_;
  const World* const world_;
  const GraceOfRun limit_;
  const Watcher watcher_;  ///< last: it uses the others
};

}  // namespace tessera::cli
