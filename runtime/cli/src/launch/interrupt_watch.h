#pragma once

#include <chrono>
#include <optional>

#include "run/interrupt.h"
#include "run/watcher.h"
#include "tessera/collectives/world.h"

namespace tessera::cli {

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
